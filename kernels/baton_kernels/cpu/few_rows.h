// Linear layers of float32 for few rows, at the speed of reading the weights once. They lie as oneDNN packs them
// for AVX-512: in panels of kPackedPanel outputs, each a row of them for every input.
#pragma once

#include <algorithm>
#include <array>

#include "vectors.h"

// The caller's mirror of this struct is cpu_few_rows.py.
struct BatonFewRows {
  const float* x;           // [num_rows, in_features]
  const float* panels;      // [out_features / kPackedPanel, in_features, kPackedPanel]
  const float* bias;        // [out_features] or null
  float* out;               // [num_rows, out_features]
  int64_t x_stride;         // elements between the rows of x
  int64_t num_rows;
  int64_t in_features, out_features, num_threads;
};

namespace baton {

constexpr int kPackedPanel = 64;
constexpr int kPackedVectors = kPackedPanel / kLanes;
constexpr int kFewTileRows = 6;
constexpr int64_t kFewInputs = 640;    // of a panel, so that two such blocks fit a core's second cache
constexpr int64_t kAhead = 16;         // inputs that a single tile asks for early
constexpr int kBlockLines = 4;         // cache lines of a panel for each input

// `kRows` rows times `size` inputs of a panel, added to `out`. For each input it asks for `kLines` cache lines of
// `next`, so that memory works while the cores multiply.
template <int kRows, int kLines>
void multiply_tile(const BatonFewRows& step, int64_t row, int64_t input, int64_t size, int64_t out,
                   const float* next) {
  const float* panel = step.panels + out * step.in_features + input * kPackedPanel;
  const float* x = step.x + row * step.x_stride + input;
  float* to = step.out + row * step.out_features + out;
  Floats sums[kRows][kPackedVectors];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPackedVectors; ++i) {
      if (input) sums[r][i] = load(to + r * step.out_features + i * kLanes);
      else sums[r][i] = step.bias ? load(step.bias + out + i * kLanes) : Floats{};
    }
  for (int64_t k = 0; k < size; ++k, panel += kPackedPanel, next += kLines * 16) {
    for (int line = 0; line < kLines; ++line) __builtin_prefetch(next + line * 16, 0, 2);
    Floats weights[kPackedVectors];
    for (int i = 0; i < kPackedVectors; ++i) weights[i] = load(panel + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Floats factor = splat(x[r * step.x_stride + k]);
      for (int i = 0; i < kPackedVectors; ++i) sums[r][i] += factor * weights[i];
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPackedVectors; ++i) store(to + r * step.out_features + i * kLanes, sums[r][i]);
}

using MultiplyTile = void (*)(const BatonFewRows&, int64_t, int64_t, int64_t, int64_t, const float*);

template <int kLines>
constexpr std::array<MultiplyTile, kFewTileRows> kTilesByRows = {
    multiply_tile<1, kLines>, multiply_tile<2, kLines>, multiply_tile<3, kLines>,
    multiply_tile<4, kLines>, multiply_tile<5, kLines>, multiply_tile<6, kLines>};

// All rows times one block of a panel; the tiles share the asking for the block behind it. A sum has the same
// order, and so the same bits, with any number of rows.
inline void multiply_block(const BatonFewRows& step, int64_t out, int64_t input) {
  const int64_t size = std::min(kFewInputs, step.in_features - input);
  const int64_t num_tiles = (step.num_rows + kFewTileRows - 1) / kFewTileRows;
  const int lines = num_tiles == 1 ? kBlockLines : num_tiles < kBlockLines ? 2 : 1;
  const float* block = step.panels + out * step.in_features + input * kPackedPanel;
  int64_t row = 0;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t rows = (step.num_rows - row) / (num_tiles - tile);
    const float* next = num_tiles == 1 ? block + kAhead * kPackedPanel
                                       : block + size * (kPackedPanel + tile * lines * 16);
    const auto& by_rows = tile * lines >= kBlockLines ? kTilesByRows<0>
                          : lines == 1                ? kTilesByRows<1>
                          : lines == 2                ? kTilesByRows<2>
                                                      : kTilesByRows<kBlockLines>;
    by_rows[rows - 1](step, row, input, size, out, next);
    row += rows;
  }
}

inline void multiply_few_rows(const BatonFewRows& step) {
#pragma omp parallel for num_threads(step.num_threads) schedule(static)
  for (int64_t out = 0; out < step.out_features; out += kPackedPanel)
    for (int64_t input = 0; input < step.in_features; input += kFewInputs)
      multiply_block(step, out, input);
}

}  // namespace baton
