// Linear layers for few rows, at the speed of reading the weights once. They lie as oneDNN packs them for AVX-512:
// in panels of kPackedPanel outputs, each a row of them for every input, or for every two of bfloat16.
#pragma once

#include <algorithm>
#include <array>

#include "helpers.h"
#include "pairs.h"

// The caller's mirror of this struct is cpu_few_rows.py.
struct BatonFewRows {
  const void* x;            // [num_rows, in_features]
  const void* panels;       // [out_features / kPackedPanel, in_features / depth, kPackedPanel, depth]
  const void* bias;         // [out_features] or null
  void* out;                // [num_rows, out_features]
  int64_t x_stride;         // elements between the rows of x
  int64_t num_rows;         // at most kFewRows
  int64_t in_features, out_features, num_threads;
  int32_t is_bfloat16;      // all four, with a depth of 2; float32, with 1, otherwise
};

namespace baton {

constexpr int64_t kFewRows = 192;
constexpr int kPackedPanel = 64;
constexpr int kPackedVectors = kPackedPanel / kLanes;
constexpr int kFewTileRows = 6;
constexpr int64_t kFewInputs = 640;    // numbers of a panel, so that two such blocks fit a core's second cache
constexpr int64_t kAhead = 16;         // numbers that a single tile asks for early
constexpr int kLineNumbers = 16;       // numbers of four bytes in a cache line
constexpr int kBlockLines = 4;         // cache lines of a panel for each number of a row

template <class Number>
struct FewRowsBlock {
  const typename Inner<Number>::Element* x;   // of the first row
  int64_t x_stride;
  const Number* weights;   // [size, kPackedPanel]
  int64_t size;
};

// sums[row] += x[row] @ weights, for kRows rows. For each number of a row it asks for `kLines` cache lines of
// `next`, so that memory works while the cores multiply.
template <class Number, int kRows, int kLines>
void multiply_tile(FewRowsBlock<Number> block, const Number* next, float* sums) {
  Floats totals[kRows][kPackedVectors];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPackedVectors; ++i) totals[r][i] = load(sums + r * kPackedPanel + i * kLanes);
  const Number* weights = block.weights;
  for (int64_t k = 0; k < block.size; ++k, weights += kPackedPanel, next += kLines * kLineNumbers) {
    for (int line = 0; line < kLines; ++line) __builtin_prefetch(next + line * kLineNumbers, 0, 2);
    decltype(load_numbers(weights)) columns[kPackedVectors];
    for (int i = 0; i < kPackedVectors; ++i) columns[i] = load_numbers(weights + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = splat_number(reinterpret_cast<const Number*>(block.x + r * block.x_stride) + k);
      for (int i = 0; i < kPackedVectors; ++i) totals[r][i] = add_product(totals[r][i], factor, columns[i]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPackedVectors; ++i) store(sums + r * kPackedPanel + i * kLanes, totals[r][i]);
}

template <class Number>
using MultiplyTile = void (*)(FewRowsBlock<Number>, const Number*, float*);

template <class Number, int kLines>
constexpr std::array<MultiplyTile<Number>, kFewTileRows> kTilesByRows = {
    multiply_tile<Number, 1, kLines>, multiply_tile<Number, 2, kLines>, multiply_tile<Number, 3, kLines>,
    multiply_tile<Number, 4, kLines>, multiply_tile<Number, 5, kLines>, multiply_tile<Number, 6, kLines>};

// All rows times one block of a panel; the tiles share the asking for the block behind it. A sum has the same
// order, and so the same bits, with any number of rows.
template <class Number>
void multiply_block(FewRowsBlock<Number> block, int64_t num_rows, float* sums) {
  const int64_t num_tiles = (num_rows + kFewTileRows - 1) / kFewTileRows;
  const int lines = num_tiles == 1 ? kBlockLines : num_tiles < kBlockLines ? 2 : 1;
  const Number* weights = block.weights;
  for (int64_t tile = 0, row = 0; tile < num_tiles; ++tile) {
    const int64_t rows = (num_rows - row) / (num_tiles - tile);
    const Number* next = num_tiles == 1
                             ? weights + kAhead * kPackedPanel
                             : weights + block.size * (kPackedPanel + tile * lines * kLineNumbers);
    const auto& by_rows = tile * lines >= kBlockLines ? kTilesByRows<Number, 0>
                          : lines == 1                ? kTilesByRows<Number, 1>
                          : lines == 2                ? kTilesByRows<Number, 2>
                                                      : kTilesByRows<Number, kBlockLines>;
    by_rows[rows - 1](block, next, sums + row * kPackedPanel);
    block.x += rows * block.x_stride;
    row += rows;
  }
}

// The outputs of one panel.
template <class Number>
void multiply_few_rows_panel(const BatonFewRows& step, int64_t panel) {
  using Element = typename Inner<Number>::Element;
  const int64_t size = step.in_features / Inner<Number>::kDepth, first = panel * kPackedPanel;
  const Number* weights = static_cast<const Number*>(step.panels) + panel * size * kPackedPanel;
  alignas(64) float sums[kFewRows * kPackedPanel];
  for (int i = 0; i < kPackedPanel; i += kLanes) {
    const Floats bias = step.bias ? load(static_cast<const Element*>(step.bias) + first + i) : Floats{};
    for (int64_t row = 0; row < step.num_rows; ++row) store(sums + row * kPackedPanel + i, bias);
  }
  for (int64_t k = 0; k < size; k += kFewInputs) {
    const Element* x = static_cast<const Element*>(step.x) + k * Inner<Number>::kDepth;
    multiply_block<Number>({x, step.x_stride, weights + k * kPackedPanel, std::min(kFewInputs, size - k)},
                           step.num_rows, sums);
  }
  for (int64_t row = 0; row < step.num_rows; ++row)
    copy_row(sums + row * kPackedPanel, static_cast<Element*>(step.out) + row * step.out_features + first,
             kPackedPanel);
}

// Return whether this build has the numbers, and the rows are few.
inline bool multiply_few_rows(const BatonFewRows& step) {
  if (step.num_rows > kFewRows) return false;
#if BATON_BFLOAT16_DOT
  const auto multiply = step.is_bfloat16 ? multiply_few_rows_panel<Pair> : multiply_few_rows_panel<float>;
#else
  if (step.is_bfloat16) return false;
  const auto multiply = multiply_few_rows_panel<float>;
#endif
  const int64_t num_panels = step.out_features / kPackedPanel;
  for_each(step.num_threads, num_panels, fair_grain(step.num_threads, num_panels),
           [&](int64_t panel, int64_t) { multiply(step, panel); });
  return true;
}

}  // namespace baton
