// Linear layers with packed weights: few rows at the speed of reading the weights once, many at that of the
// multiplications. The weights lie in panels of kPackedPanel outputs, each a row of them for every input, or for
// every two where bfloat16 is multiplied in pairs; zeros behind the last output.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "early.h"
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
constexpr int64_t kPackedInputs = 640;    // rows of a panel, so that two such blocks fit a core's second cache
constexpr int64_t kFewRows = 15;          // up to these several tiles wait for memory: two blocks fit the first cache
constexpr int64_t kFewBytes = 16 << 10;   // of such a block
constexpr int64_t kAheadBytes = 4 << 10;  // that a single tile asks for early

#if BATON_BFLOAT16_DOT
using PackedBfloat16 = Pair;
#else
using PackedBfloat16 = Bfloat16;
#endif

// What weights are multiplied by: as they are, or as what they are widened to.
template <class Number>
using Factor = std::conditional_t<std::is_same_v<Number, Bfloat16>, float, Number>;

template <class Number>
struct PackedBlock {
  const typename Inner<Factor<Number>>::Element* x;   // of the first row
  int64_t x_stride;
  const Number* weights;   // [size, kPackedPanel]
  int64_t size;
};

// sums[row] += x[row] @ weights, for kRows rows.
template <class Number, int kRows, bool kAsks>
void multiply_tile(PackedBlock<Number> block, Early early, float* sums) {
  Floats totals[kRows][kPackedVectors];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPackedVectors; ++i) totals[r][i] = load(sums + r * kPackedPanel + i * kLanes);
  const Number* weights = block.weights;
  for (int64_t k = 0; k < block.size; ++k, weights += kPackedPanel) {
    if constexpr (kAsks) early.ask();
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
using MultiplyTile = void (*)(PackedBlock<Number>, Early, float*);

template <class Number, bool kAsks>
constexpr std::array<MultiplyTile<Number>, kPackedTileRows> kTilesByRows = {
    multiply_tile<Number, 1, kAsks>, multiply_tile<Number, 2, kAsks>, multiply_tile<Number, 3, kAsks>,
    multiply_tile<Number, 4, kAsks>, multiply_tile<Number, 5, kAsks>, multiply_tile<Number, 6, kAsks>};

// All rows times one block of a panel. The tiles share the asking for the block behind it; a single one asks for what
// it soon reads itself. A sum has the same order, and so the same bits, with any number of rows.
template <class Number>
void multiply_block(PackedBlock<Number> block, int64_t num_rows, float* sums) {
  constexpr int64_t kRowBytes = kPackedPanel * sizeof(Number);
  const int64_t num_tiles = (num_rows + kPackedTileRows - 1) / kPackedTileRows;
  const int64_t ahead = num_tiles == 1 ? kAheadBytes : block.size * kRowBytes;
  const char* from = reinterpret_cast<const char*>(block.weights) + ahead;
  for (int64_t tile = 0, row = 0; tile < num_tiles; ++tile) {
    const int64_t rows = (num_rows - row) / (num_tiles - tile);
    const Early early = share_early(from, kRowBytes, block.size, num_tiles, tile);
    const auto& by_rows = early.asks() ? kTilesByRows<Number, true> : kTilesByRows<Number, false>;
    by_rows[rows - 1](block, early, sums + row * kPackedPanel);
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
  const bool is_few = num_rows > kPackedTileRows && num_rows <= kFewRows;
  const int64_t most = is_few ? kFewBytes / (kPackedPanel * sizeof(Number)) : kPackedInputs;
  for (int64_t left = (size + most - 1) / most, k = 0; left > 0; --left) {
    const int64_t length = (size - k) / left;
    multiply_block<Number>({x + k * Inner<Number>::kDepth, step.x_stride, weights + k * kPackedPanel, length},
                           num_rows, sums);
    k += length;
  }
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
  for_each(step.num_threads, num_pieces * num_panels, 1, [&](int64_t index, int64_t) noexcept {
    multiply(step, index / num_panels * kPackedRows, index % num_panels);
  });
}

}  // namespace baton
