// Linear layers with packed weights: few rows at the speed of reading the weights once, many at that of the
// multiplications. The weights lie in panels of kPackedPanel outputs, each a row of them for every input, or for
// every two where bfloat16 is multiplied in pairs; zeros behind the last output.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "helpers.h"
#include "pairs.h"
#include "row_functions.h"

// The caller's mirror of this struct is cpu_packed.py.
struct BatonPacked {
  const void* x;            // [num_rows, in_features]; float32 where bfloat16 is not multiplied in pairs
  const void* panels;       // [num_panels, in_features / depth, kPackedPanel, depth]
  const void* bias;         // [num_panels, kPackedPanel] or null
  void* out;                // [num_rows, out_features], or half of it if gated
  int64_t x_stride;         // elements between the rows of x
  int64_t num_rows, in_features, out_features, num_threads;
  int32_t is_bfloat16;      // the others; float32 otherwise
  int32_t function;         // a number of Function: out is function(first half of the outputs) * second half;
                            // whole panels each; kNotGated: out is the outputs
};

namespace baton {

constexpr int kPackedVectors = kLanes == 16 ? 4 : 2;   // of a panel: six rows' sums of them fit the registers
constexpr int kPackedPanel = kPackedVectors * kLanes;
constexpr int kPackedTileRows = 6;
constexpr int64_t kPackedRows = kLanes == 16 ? 192 : 144;   // rows that share a pass over a panel
constexpr int64_t kPackedInputs = 640;    // numbers of a panel, so that two such blocks fit a core's second cache
constexpr int64_t kAhead = 1024;          // numbers of a panel that a single tile asks for early

#if BATON_BFLOAT16_DOT
using PackedBfloat16 = Pair;
#else
using PackedBfloat16 = Bfloat16;
#endif

// What weights are multiplied by: as they are, or as what they are widened to.
template <class Number>
using Factor = std::conditional_t<std::is_same_v<Number, Bfloat16>, float, Number>;

template <class Number>
constexpr int kLineNumbers = 64 / sizeof(Number);   // in a cache line
template <class Number>
constexpr int kBlockLines = std::max(1, kPackedPanel / kLineNumbers<Number>);   // for each number of a row

template <class Number>
struct PackedBlock {
  const typename Inner<Factor<Number>>::Element* x;   // of the first row
  int64_t x_stride;
  const Number* weights;   // [size, kPackedPanel]
  int64_t size;
};

// sums[row] += x[row] @ weights, for kRows rows. For each number of a row it asks for `kLines` cache lines from
// `next` on, or for the row of a panel if that is as many, so that memory works while the cores multiply.
template <class Number, int kRows, int kLines>
void multiply_tile(PackedBlock<Number> block, const Number* next, float* sums) {
  Floats totals[kRows][kPackedVectors];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPackedVectors; ++i) totals[r][i] = load(sums + r * kPackedPanel + i * kLanes);
  constexpr int kStep = kLines == kBlockLines<Number> ? kPackedPanel : kLines * kLineNumbers<Number>;
  const Number* weights = block.weights;
  for (int64_t k = 0; k < block.size; ++k, weights += kPackedPanel, next += kStep) {
    for (int line = 0; line < kLines; ++line) __builtin_prefetch(next + line * kLineNumbers<Number>, 0, 2);
    decltype(load_numbers(weights)) columns[kPackedVectors];
    for (int i = 0; i < kPackedVectors; ++i) columns[i] = load_numbers(weights + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = splat_number(reinterpret_cast<const Factor<Number>*>(block.x + r * block.x_stride) + k);
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
  constexpr int kAll = kBlockLines<Number>;
  const int lines = num_tiles == 1 ? kAll : num_tiles < kAll ? 2 : 1;
  const Number* weights = block.weights;
  for (int64_t tile = 0, row = 0; tile < num_tiles; ++tile) {
    const int64_t rows = (num_rows - row) / (num_tiles - tile);
    const Number* next = num_tiles == 1
                             ? weights + kAhead
                             : weights + block.size * (kPackedPanel + tile * lines * kLineNumbers<Number>);
    const auto& by_rows = tile * lines >= kAll ? kTilesByRows<Number, 0>
                          : lines == kAll      ? kTilesByRows<Number, kAll>
                          : lines == 1         ? kTilesByRows<Number, 1>
                                               : kTilesByRows<Number, 2>;
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
  const auto* x = static_cast<decltype(PackedBlock<Number>::x)>(step.x) + first * step.x_stride;
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

inline void multiply_packed(const BatonPacked& step) {
  const auto multiply = step.is_bfloat16 ? multiply_piece<PackedBfloat16> : multiply_piece<float>;
  const int64_t width = step.function == kNotGated ? step.out_features : step.out_features / 2;
  const int64_t num_panels = (width + kPackedPanel - 1) / kPackedPanel;
  const int64_t num_pieces = (step.num_rows + kPackedRows - 1) / kPackedRows;
  for_each(step.num_threads, num_pieces * num_panels, 1, [&](int64_t index, int64_t) {
    multiply(step, index / num_panels * kPackedRows, index % num_panels);
  });
}

}  // namespace baton
