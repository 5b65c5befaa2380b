// Linear layers with packed weights: few rows at the speed of reading the weights once, many at that of the
// multiplications. Packed weights are panels of kPackedPanelWidth outputs: a row of them for every input, or for every
// two where bfloat16 is multiplied in pairs; zeros behind the last output.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "prefetch.h"
#include "thread_pool.h"
#include "bfloat16_pairs.h"
#include "norms_activations.h"
#include "structs.h"

namespace baton {

constexpr int kPackedVectors = kLanes == 16 ? 4 : 2;   // vectors of a panel: the sums of six rows fit the registers
constexpr int kPackedPanelWidth = kPackedVectors * kLanes;
constexpr int kPackedTileRows = 6;
constexpr int64_t kPackedRows = kLanes == 16 ? 192 : 144;   // rows that share a pass over a panel
constexpr int64_t kPackedInputs = 640;    // rows of a panel, so that two such blocks fit a core's second cache
constexpr int64_t kFewRows = kLanes == 16 ? 18 : 15;   // up to these several tiles wait for memory: two blocks fit the first cache
constexpr int64_t kFewBytes = 16 << 10;   // bytes of such a block
constexpr int64_t kPrefetchBytes = 4 << 10;  // distance of the prefetch of a single tile

#if BATON_BFLOAT16_DOT
using PackedBfloat16 = Pair;
#else
using PackedBfloat16 = Bfloat16;
#endif

// The operand that multiplies a weight: of its own type, or of the type that it is widened to.
template <class Number>
using Factor = std::conditional_t<std::is_same_v<Number, Bfloat16>, float, Number>;

template <class Number>
struct PackedBlock {
  const typename Packing<Factor<Number>>::Element* x;   // of the first row
  int64_t x_stride;
  const Number* weights;   // [size, kPackedPanelWidth]
  int64_t size;
};

// Set sums in registers to 0; an initializer may write them to memory first.
template <int kRows, int kVectors>
inline void clear(Floats (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) sums[r][i] = Floats{};
}

// sums[row] += x[row] @ weights, for kRows rows. The prefetch is into kCache; 0: there is none.
template <class Number, int kRows, int kCache>
inline __attribute__((always_inline)) void sum_products(const PackedBlock<Number>& block, Prefetch prefetch,
                                                        Floats (&sums)[kRows][kPackedVectors]) {
  const Number* weights = block.weights;
  for (int64_t k = 0; k < block.size; ++k, weights += kPackedPanelWidth) {
    if constexpr (kCache) prefetch.issue<kCache>();
    decltype(load_numbers(weights)) columns[kPackedVectors];
    for (int i = 0; i < kPackedVectors; ++i) columns[i] = load_numbers(weights + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = splat_number(reinterpret_cast<const Factor<Number>*>(block.x + r * block.x_stride) + k);
      for (int i = 0; i < kPackedVectors; ++i) sums[r][i] = add_product(sums[r][i], factor, columns[i]);
    }
  }
}

template <class Number, int kRows, int kCache>
void multiply_tile(PackedBlock<Number> block, Prefetch prefetch, float* sums) {
  Floats totals[kRows][kPackedVectors];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPackedVectors; ++i) totals[r][i] = load(sums + r * kPackedPanelWidth + i * kLanes);
  sum_products<Number, kRows, kCache>(block, prefetch, totals);
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kPackedVectors; ++i) store(sums + r * kPackedPanelWidth + i * kLanes, totals[r][i]);
}

template <class Number>
using MultiplyTile = void (*)(PackedBlock<Number>, Prefetch, float*);

template <class Number, int kCache>
constexpr std::array<MultiplyTile<Number>, kPackedTileRows> kTilesByRows = {
    multiply_tile<Number, 1, kCache>, multiply_tile<Number, 2, kCache>, multiply_tile<Number, 3, kCache>,
    multiply_tile<Number, 4, kCache>, multiply_tile<Number, 5, kCache>, multiply_tile<Number, 6, kCache>};

// Multiply all rows with one block of a panel. The tiles share the prefetch of the next block, into kCache; a single tile
// prefetches its own. A sum has the same order, and so the same bits, with any number of rows.
template <class Number, int kCache>
void multiply_block(PackedBlock<Number> block, int64_t num_rows, float* sums) {
  constexpr int64_t kRowBytes = kPackedPanelWidth * sizeof(Number);
  const int64_t num_tiles = (num_rows + kPackedTileRows - 1) / kPackedTileRows;
  const int64_t ahead = num_tiles == 1 ? kPrefetchBytes : block.size * kRowBytes;
  const char* from = reinterpret_cast<const char*>(block.weights) + ahead;
  for (int64_t tile = 0, row = 0; tile < num_tiles; ++tile) {
    const int64_t rows = (num_rows - row) / (num_tiles - tile);
    const Prefetch prefetch = share_prefetch(from, kRowBytes, block.size, num_tiles, tile);
    const auto& by_rows = prefetch.is_enabled() ? kTilesByRows<Number, kCache> : kTilesByRows<Number, 0>;
    by_rows[rows - 1](block, prefetch, sums + row * kPackedPanelWidth);
    block.x += rows * block.x_stride;
    row += rows;
  }
}

// One panel's outputs of `num_rows` rows from `first` on, in float32.
template <class Number>
void multiply_panel(const PackedLinearArgs& args, int64_t first, int64_t num_rows, int64_t panel, float* sums) {
  using Element = typename Packing<Number>::Element;
  const int64_t size = args.in_features / Packing<Number>::kDepth;
  const Number* weights = static_cast<const Number*>(args.packed_weight) + panel * size * kPackedPanelWidth;
  for (int i = 0; i < kPackedPanelWidth; i += kLanes) {
    const Floats bias =
        args.bias ? load(static_cast<const Element*>(args.bias) + panel * kPackedPanelWidth + i) : Floats{};
    for (int64_t row = 0; row < num_rows; ++row) store(sums + row * kPackedPanelWidth + i, bias);
  }
  const auto* x = static_cast<decltype(PackedBlock<Number>::x)>(args.x) + first * args.x_stride;
  const bool is_few = num_rows > kPackedTileRows && num_rows <= kFewRows;
  const int64_t most = is_few ? kFewBytes / (kPackedPanelWidth * sizeof(Number)) : kPackedInputs;
  for (int64_t left = (size + most - 1) / most, k = 0; left > 0; --left) {
    const int64_t length = (size - k) / left;
    const auto multiply = is_few ? multiply_block<Number, kSecondCache> : multiply_block<Number, kFirstCache>;
    multiply({x + k * Packing<Number>::kDepth, args.x_stride, weights + k * kPackedPanelWidth, length}, num_rows, sums);
    k += length;
  }
}

// The outputs of one panel, or of two that are gated with each other, for kPackedRows rows from `first` on.
template <class Number>
void multiply_piece(const PackedLinearArgs& args, int64_t first, int64_t panel) {
  using Element = typename Packing<Number>::Element;
  const int64_t num_rows = std::min(kPackedRows, args.num_rows - first);
  const bool is_gated = args.function != kNotGated;
  const int64_t width = output_width(args);
  alignas(64) float sums[kPackedRows * kPackedPanelWidth], factors[kPackedRows * kPackedPanelWidth];
  multiply_panel<Number>(args, first, num_rows, panel, sums);
  if (is_gated) {
    multiply_panel<Number>(args, first, num_rows, panel + width / kPackedPanelWidth, factors);
    gate(static_cast<Function>(args.function), sums, factors, num_rows * kPackedPanelWidth);
  }
  for (int64_t row = 0; row < num_rows; ++row)
    copy_row(sums + row * kPackedPanelWidth,
             static_cast<Element*>(args.out) + (first + row) * width + panel * kPackedPanelWidth,
             std::min<int64_t>(kPackedPanelWidth, width - panel * kPackedPanelWidth));
}

inline void packed_linear(const PackedLinearArgs& args) {
  const auto multiply = args.is_bfloat16 ? multiply_piece<PackedBfloat16> : multiply_piece<float>;
  const int64_t width = output_width(args);
  const int64_t num_panels = (width + kPackedPanelWidth - 1) / kPackedPanelWidth;
  const int64_t num_pieces = (args.num_rows + kPackedRows - 1) / kPackedRows;
  parallel_for(args.num_threads, num_pieces * num_panels, 1, [&](int64_t index, int64_t) noexcept {
    multiply(args, index / num_panels * kPackedRows, index % num_panels);
  });
}

}  // namespace baton
