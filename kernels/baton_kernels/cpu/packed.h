// Linear layers with packed weights, for vectors of 16 numbers: few rows at the speed of reading the weights once,
// many at that of the multiplications. The weights lie in panels of kPackedPanel outputs, each a row of them for
// every input, or for every two of bfloat16; zeros behind the last output.
#pragma once

#include <algorithm>
#include <array>

#include "helpers.h"
#include "pairs.h"
#include "row_functions.h"

// The caller's mirror of this struct is cpu_packed.py.
struct BatonPacked {
  const void* x;            // [num_rows, in_features]
  const void* panels;       // [num_panels, in_features / depth, kPackedPanel, depth]
  const void* bias;         // [num_panels, kPackedPanel] or null
  void* out;                // [num_rows, out_features], or half of it if gated
  int64_t x_stride;         // elements between the rows of x
  int64_t num_rows, in_features, out_features, num_threads;
  int32_t is_bfloat16;      // all four, with a depth of 2; float32, with 1, otherwise
  int32_t function;         // a number of Function: out is function(first half of the outputs) * second half;
                            // whole panels each; kNotGated: out is the outputs
};

namespace baton {

constexpr int64_t kPackedRows = 192;      // rows that share a pass over a panel
constexpr int kPackedPanel = 64;
constexpr int kPackedVectors = kPackedPanel / kLanes;
constexpr int kPackedTileRows = 6;
constexpr int64_t kPackedInputs = 640;    // numbers of a panel, so that two such blocks fit a core's second cache
constexpr int64_t kAhead = 16;         // numbers that a single tile asks for early
constexpr int kLineNumbers = 16;       // numbers of four bytes in a cache line
constexpr int kBlockLines = 4;         // cache lines of a panel for each number of a row

template <class Number>
struct PackedBlock {
  const typename Inner<Number>::Element* x;   // of the first row
  int64_t x_stride;
  const Number* weights;   // [size, kPackedPanel]
  int64_t size;
};

// sums[row] += x[row] @ weights, for kRows rows. For each number of a row it asks for `kLines` cache lines of
// `next`, so that memory works while the cores multiply.
template <class Number, int kRows, int kLines>
void multiply_tile(PackedBlock<Number> block, const Number* next, float* sums) {
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
using MultiplyTile = void (*)(PackedBlock<Number>, const Number*, float*);

template <class Number, int kLines>
constexpr std::array<MultiplyTile<Number>, kPackedTileRows> kTilesByRows = {
    multiply_tile<Number, 1, kLines>, multiply_tile<Number, 2, kLines>, multiply_tile<Number, 3, kLines>,
    multiply_tile<Number, 4, kLines>, multiply_tile<Number, 5, kLines>, multiply_tile<Number, 6, kLines>};

// All rows times one block of a panel; the tiles share the asking for the block behind it. A sum has the same
// order, and so the same bits, with any number of rows.
template <class Number>
void multiply_block(PackedBlock<Number> block, int64_t num_rows, float* sums) {
  const int64_t num_tiles = (num_rows + kPackedTileRows - 1) / kPackedTileRows;
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

// One panel's outputs of `num_rows` rows from `first` on, in float32.
template <class Number>
void multiply_panel(const BatonPacked& step, int64_t first, int64_t num_rows, int64_t panel, float* sums) {
  using Element = typename Inner<Number>::Element;
  const int64_t size = step.in_features / Inner<Number>::kDepth;
  const Number* weights = static_cast<const Number*>(step.panels) + panel * size * kPackedPanel;
  for (int i = 0; i < kPackedPanel; i += kLanes) {
    const Floats bias =
        step.bias ? load(static_cast<const Element*>(step.bias) + panel * kPackedPanel + i) : Floats{};
    for (int64_t row = 0; row < num_rows; ++row) store(sums + row * kPackedPanel + i, bias);
  }
  const Element* x = static_cast<const Element*>(step.x) + first * step.x_stride;
  for (int64_t k = 0; k < size; k += kPackedInputs)
    multiply_block<Number>({x + k * Inner<Number>::kDepth, step.x_stride, weights + k * kPackedPanel,
                            std::min(kPackedInputs, size - k)},
                           num_rows, sums);
}

// The outputs of one panel, or of two that are gated with each other, for kPackedRows rows from `first` on.
template <class Number>
void multiply_piece(const BatonPacked& step, int64_t first, int64_t panel) {
  using Element = typename Inner<Number>::Element;
  const int64_t num_rows = std::min(kPackedRows, step.num_rows - first);
  const bool is_gated = step.function != kNotGated;
  const int64_t width = is_gated ? step.out_features / 2 : step.out_features;
  alignas(64) float sums[kPackedRows * kPackedPanel], factors[kPackedRows * kPackedPanel];
  multiply_panel<Number>(step, first, num_rows, panel, sums);
  if (is_gated) {
    multiply_panel<Number>(step, first, num_rows, panel + width / kPackedPanel, factors);
    gate(static_cast<Function>(step.function), sums, factors, num_rows * kPackedPanel);
  }
  for (int64_t row = 0; row < num_rows; ++row)
    copy_row(sums + row * kPackedPanel,
             static_cast<Element*>(step.out) + (first + row) * width + panel * kPackedPanel,
             std::min<int64_t>(kPackedPanel, width - panel * kPackedPanel));
}

// Return whether this build has the numbers.
inline bool multiply_packed(const BatonPacked& step) {
#if BATON_BFLOAT16_DOT
  const auto multiply = step.is_bfloat16 ? multiply_piece<Pair> : multiply_piece<float>;
#else
  if (step.is_bfloat16) return false;
  const auto multiply = multiply_piece<float>;
#endif
  const int64_t width = step.function == kNotGated ? step.out_features : step.out_features / 2;
  const int64_t num_panels = (width + kPackedPanel - 1) / kPackedPanel;
  const int64_t num_pieces = (step.num_rows + kPackedRows - 1) / kPackedRows;
  for_each(step.num_threads, num_pieces * num_panels, 1, [&](int64_t index, int64_t) {
    multiply(step, index / num_panels * kPackedRows, index % num_panels);
  });
  return true;
}

}  // namespace baton
