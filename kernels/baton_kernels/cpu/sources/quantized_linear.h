// Linear layers of quantized weights. The codes of a panel are decoded, a chunk of inputs at a time, into the layout of
// packed_linear.h, in the first cache; the products of a chunk are summed in float32, or as integers where the inputs are
// codes too, and then scaled. So codes are read once for many rows, no value is rounded but the result, and a row's
// numbers depend on the row alone.
#pragma once

#include <algorithm>

#include "decode_codes.h"
#include "norms_activations.h"
#include "packed_linear.h"
#include "panel_scales.h"
#include "quantized_rows.h"
#if BATON_TILES
#include "amx.h"
#endif
#include "structs.h"
#include "thread_pool.h"

namespace baton {

constexpr int64_t kChunkInputs = 128;      // most inputs of a chunk: its decoded panel fits the first cache
constexpr int64_t kQuantizedRows = 192;    // most rows that share a pass over a panel
constexpr int64_t kQuantizedBytes = 512 << 10;   // more bytes of x are passes of half as many rows: they share the second cache

// Add the products of kRows rows, from `row` on, with a chunk of a decoded panel to their totals.
template <class Number, int kRows>
void add_chunk_tile(const PackedBlock<Number>& block, const Prefetch& prefetch, const ChunkScales& scales, int64_t row,
                    float* totals) {
  Floats sums[kRows][kPackedVectors];
  clear(sums);
  sum_products<Number, kRows, kFirstCache>(block, prefetch, sums);
  scales.add(row, sums, totals);
}

template <class Number>
using AddChunkTile = void (*)(const PackedBlock<Number>&, const Prefetch&, const ChunkScales&, int64_t, float*);

template <class Number>
constexpr std::array<AddChunkTile<Number>, kPackedTileRows> kChunkTilesByRows = {
    add_chunk_tile<Number, 1>, add_chunk_tile<Number, 2>, add_chunk_tile<Number, 3>,
    add_chunk_tile<Number, 4>, add_chunk_tile<Number, 5>, add_chunk_tile<Number, 6>};

// Products of up to kRows rows with a chunk of a decoded panel, which is taken kOperands at a time: whole.
template <class Number>
class ChunkProduct {
 public:
  static constexpr bool kPrefetches = true;
  static constexpr int64_t kRows = kPackedTileRows, kOperands = kChunkInputs / Packing<Number>::kDepth;

  void begin(int64_t num_rows, int64_t) { num_rows_ = num_rows; }

  void add(const PackedBlock<Number>& block, const Prefetch& prefetch, const ChunkScales& scales, int64_t row,
           float* totals) const {
    kChunkTilesByRows<Number>[num_rows_ - 1](block, prefetch, scales, row, totals);
  }

  void end(const ChunkScales&, int64_t, float*) const {}

 private:
  int64_t num_rows_ = 0;
};

#if BATON_TILES
// The same with AMX: tiles 0 to 3 are the sums, 4 and 6 hold rows of x, 5 and 7 weights; 6 and 7 are those of the last
// operands, fewer than 16. Sums of codes are integers of 32 bits.
template <class Number>
class TileChunkProduct {
 public:
  static constexpr bool kPrefetches = false;
  static constexpr int64_t kRows = 16, kOperands = 16;

  void begin(int64_t num_rows, int64_t size) {
    configure(num_rows, size % kOperands);
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  }

  void add(const PackedBlock<Number>& block, const Prefetch&, const ChunkScales&, int64_t, float*) const {
    if (rest_ == 0) multiply<4, 5, 7>(block);
    else if (block.size == kOperands) multiply<4, 5, 5>(block);
    else multiply<6, 7, 7>(block);
  }

  void end(const ChunkScales& scales, int64_t first, float* totals) const {
    alignas(64) Number sums[kRows * kPackedPanelWidth];
    store_tile<0>(sums, kStride), store_tile<1>(sums + 16, kStride);
    store_tile<2>(sums + 32, kStride), store_tile<3>(sums + 48, kStride);
    int64_t row = 0;
    for (; row + 4 <= num_rows_; row += 4) add_rows<4>(scales, first, row, sums, totals);
    for (; row < num_rows_; ++row) add_rows<1>(scales, first, row, sums, totals);
  }

 private:
  static constexpr int64_t kStride = kPackedPanelWidth * sizeof(Number);
  static_assert(kPackedPanelWidth == 64 && sizeof(Number) == sizeof(float));

  // Add the sums of rows from `row` on of those from `first` on.
  template <int kCount>
  static void add_rows(const ChunkScales& scales, int64_t first, int64_t row, const Number* sums, float* totals) {
    Floats numbers[kCount][kPackedVectors];
    for (int r = 0; r < kCount; ++r)
      for (int i = 0; i < kPackedVectors; ++i)
        numbers[r][i] = load_sum(sums + (row + r) * kPackedPanelWidth + i * kLanes);
    scales.add(first + row, numbers, totals + row * kPackedPanelWidth);
  }

  static Floats load_sum(const Number* from) {
    std::conditional_t<std::is_same_v<Number, Quad>, Ints, Floats> sum;
    std::memcpy(&sum, from, sizeof sum);
    return __builtin_convertvector(sum, Floats);
  }

  template <int kX, int kEven, int kOdd>
  static void multiply(const PackedBlock<Number>& block) {
    load_tile<kX>(block.x, block.x_stride * sizeof *block.x);
    multiply_panel<0, kX, kEven>(block.weights), multiply_panel<1, kX, kOdd>(block.weights);
    multiply_panel<2, kX, kEven>(block.weights), multiply_panel<3, kX, kOdd>(block.weights);
  }

  template <int kSums, int kX, int kWeights>
  static void multiply_panel(const Number* weights) {
    load_tile<kWeights>(weights + 16 * kSums, kStride);
    if constexpr (std::is_same_v<Number, Quad>) multiply_code_tiles<kSums, kX, kWeights>();
    else multiply_tiles<kSums, kX, kWeights>();
  }

  void configure(int64_t num_rows, int64_t rest) {
    if (num_rows == num_rows_ && rest == rest_) return;
    num_rows_ = num_rows, rest_ = rest;
    TileConfiguration all{};
    all.palette = 1;
    for (int tile = 0; tile < 8; ++tile) all.row_bytes[tile] = 64, all.num_rows[tile] = num_rows;
    all.num_rows[5] = kOperands;
    all.num_rows[7] = rest ? rest : kOperands;
    all.row_bytes[6] = 4 * all.num_rows[7];
    configure_tiles(all);
  }

  const TileSession session_;
  int64_t num_rows_ = 0, rest_ = 0;
};

template <>
class ChunkProduct<Pair> : public TileChunkProduct<Pair> {};

template <>
class ChunkProduct<Quad> : public TileChunkProduct<Quad> {};
#endif

template <class Element>
float sum_of(const Element* x, int64_t n) {
  Floats total{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) total += load(x + i);
  float rest = 0;
  for (; i < n; ++i) rest += widen(x[i]);
  return rest + sum_lanes(total);
}

inline float sum_of(const int8_t* codes, int64_t n) {
  int32_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += codes[i];
  return float(total);
}

// Sums of each chunk of each row, which zero points are multiplied with: [num_rows, num_chunks].
template <class Element>
void sum_inputs(const QuantizedLinearArgs& args, int64_t row, float* sums) {
  const auto* x = static_cast<const Element*>(args.x) + row * args.x_stride;
  for (int64_t chunk = 0, k = 0; k < args.in_features; ++chunk, k += args.chunk)
    sums[row * num_chunks(args) + chunk] = sum_of(x + k, std::min(args.chunk, args.in_features - k));
}

// One panel's outputs of `num_rows` rows from `first` on, in float32.
template <class Number>
class QuantizedPanel {
 public:
  QuantizedPanel(const QuantizedLinearArgs& args, const float* input_sums, int64_t first, int64_t num_rows,
                 int64_t panel, float* totals)
      : args_(args),
        nibbles_(args.table),
        scales_(args, input_sums, first),
        first_(first),
        num_rows_(num_rows),
        panel_(panel),
        totals_(totals) {}

  void run() {
    std::fill(totals_, totals_ + num_rows_ * kWidth, 0.0f);
    const int64_t num_tiles = (num_rows_ + Product::kRows - 1) / Product::kRows;
    for (int64_t chunk = 0; chunk < num_chunks(args_); ++chunk)
      for (int64_t tile = 0, row = 0; tile < num_tiles; ++tile) {
        const int64_t rows = (num_rows_ - row) / (num_tiles - tile);
        multiply(chunk, row, rows, tile, num_tiles);
        row += rows;
      }
    scales_.finish(panel_, num_rows_, totals_);
  }

 private:
  using Element = typename Packing<Number>::Element;
  using Product = ChunkProduct<Number>;
  static constexpr int64_t kDepth = Packing<Number>::kDepth, kWidth = kPackedPanelWidth, kRowCodes = kDepth * kWidth;

  // Add the products of some rows with a chunk, which is decoded for the first of them. All tiles share the prefetch of
  // the next chunk's codes.
  void multiply(int64_t chunk, int64_t row, int64_t rows, int64_t tile, int64_t num_tiles) {
    const int64_t k = chunk * args_.chunk, n = std::min(args_.chunk, args_.in_features - k);
    const int64_t size = (n + kDepth - 1) / kDepth, at = (panel_ * round_up(args_.in_features, kDepth) + k) * kWidth;
    const auto* x = static_cast<const Element*>(args_.x) + (first_ + row) * args_.x_stride + k;
    Prefetch prefetch;
    if constexpr (Product::kPrefetches)
      prefetch = share_prefetch(codes_at(args_, at + size * kRowCodes), num_code_bytes(args_, kRowCodes), size, num_tiles, tile);
    const ChunkScales scales = scales_.of_chunk(chunk, panel_);
    float* totals = totals_ + row * kWidth;
    product_.begin(rows, size);
    for (int64_t j = 0; j < size; j += Product::kOperands) {
      const int64_t count = std::min(Product::kOperands, size - j);
      Number* weights = weights_ + j * kWidth;
      auto* elements = reinterpret_cast<Element*>(weights);
      if (row == 0) decode(args_, nibbles_, at + j * kRowCodes, count * kRowCodes, elements);
      product_.add({x + j * kDepth, args_.x_stride, weights, count}, prefetch, scales, row, totals);
    }
    product_.end(scales, row, totals);
  }

  const QuantizedLinearArgs& args_;
  const Nibbles<Element> nibbles_;
  const PanelScales scales_;
  const int64_t first_, num_rows_, panel_;
  float* const totals_;
  Product product_;
  alignas(64) Number weights_[kChunkInputs / kDepth * kWidth];
};

template <class Number>
void quantized_many_rows(const QuantizedLinearArgs& args, const float* input_sums, int64_t num_panels) {
  constexpr int64_t kRowBytes = kQuantizedRows * sizeof(typename Packing<Number>::Element);
  const bool is_deep = args.in_features * kRowBytes > kQuantizedBytes;
  const int64_t pass_rows = is_deep ? kQuantizedRows / 2 : kQuantizedRows;
  const int64_t num_pieces = (args.num_rows + pass_rows - 1) / pass_rows;
  parallel_for(args.num_threads, num_pieces * num_panels, 1, [&](int64_t index, int64_t) noexcept {
    alignas(64) float totals[kQuantizedRows * kPackedPanelWidth], factors[kQuantizedRows * kPackedPanelWidth];
    const int64_t first = index / num_panels * pass_rows, num_rows = std::min(pass_rows, args.num_rows - first);
    quantized_piece(args, first, num_rows, index % num_panels, 1, totals, factors, [&](int64_t panel, float* to) {
      QuantizedPanel<Number>(args, input_sums, first, num_rows, panel, to).run();
    });
  });
}

template <class Number>
void quantized_linear(const QuantizedLinearArgs& args, float* input_sums) {
  using Element = typename Packing<Number>::Element;
  if (!args.num_rows) return;
  if (args.zeros)
    parallel_for(args.num_threads, args.num_rows, 1,
                 [&](int64_t row, int64_t) noexcept { sum_inputs<Element>(args, row, input_sums); });
  const int64_t num_panels = (output_width(args) + kPackedPanelWidth - 1) / kPackedPanelWidth;
#if BATON_LANES >= 8
  if constexpr (kHasRegisterPanels<Number>) {
    if (args.num_rows <= kPackedTileRows) return kFewRowsByNumber<Number>[args.num_rows - 1](args, input_sums, num_panels);
  }
#endif
  quantized_many_rows<Number>(args, input_sums, num_panels);
}

}  // namespace baton
