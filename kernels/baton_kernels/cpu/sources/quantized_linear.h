// Linear layers of quantized weights. The codes of a panel are decoded, a chunk of inputs at a time, into the layout of
// packed_linear.h, in the first cache; the products of a chunk are summed in float32 and then scaled. So codes are read
// once for many rows, no value is rounded but the result, and a row's numbers depend on the row alone.
#pragma once

#include <algorithm>

#include "float8.h"
#include "norms_activations.h"
#include "packed_linear.h"
#if BATON_TILES
#include "amx.h"
#endif
#include "structs.h"
#include "thread_pool.h"

namespace baton {

constexpr int64_t kChunkInputs = 128;      // most inputs of a chunk: its decoded panel fits the first cache
constexpr int64_t kStepPairs = 16;         // rows of a decoded panel that few rows of x take at a time: a tile of AMX
constexpr int64_t kQuantizedRows = 192;    // rows that share a pass over a panel
constexpr int64_t kShortChunk = 64, kShortChunkRows = 48;   // sums of shorter chunks are scaled often: few rows keep them near
constexpr int kNibbleBlock = kPackedPanelWidth < 64 ? kPackedPanelWidth : 64;   // codes of 4 bits that lie together

// Decodes 4-bit codes: the first half of a block of them lies in the lower bits of its bytes, the second in the upper.
template <class Element>
class Nibbles;

template <>
class Nibbles<float> {
 public:
  explicit Nibbles(const float* table) : table_(table) {}

  void decode(const uint8_t* codes, int64_t n, float* to) const {
    constexpr int kHalf = kNibbleBlock / 2;
#if BATON_LANES == 16
    const Floats values = load(table_);
    for (int64_t i = 0; i < n; i += kNibbleBlock, codes += kHalf)
      for (int part = 0; part < kHalf; part += kLanes) {
        Codes bytes;
        std::memcpy(&bytes, codes + part, sizeof bytes);
        const Ints indices = __builtin_convertvector(bytes, Ints);
        store(to + i + part, __builtin_shuffle(values, indices));
        store(to + i + kHalf + part, __builtin_shuffle(values, indices >> 4));
      }
#else
    for (int64_t i = 0; i < n; i += kNibbleBlock, codes += kHalf)
      for (int part = 0; part < kHalf; ++part) {
        to[i + part] = table_[codes[part] & 15];
        to[i + kHalf + part] = table_[codes[part] >> 4];
      }
#endif
  }

 private:
  const float* table_;
};

#if BATON_BFLOAT16_DOT
template <>
class Nibbles<Bfloat16> {
 public:
  explicit Nibbles(const float* table) {
    for (int i = 0; i < 32; ++i) values_[i] = to_bfloat16(table[i % 16]);   // an index counts by its lower bits alone
  }

  void decode(const uint8_t* codes, int64_t n, Bfloat16* to) const {
    const __m512i values = _mm512_load_si512(values_);
    for (int64_t i = 0; i < n; i += 64, codes += 32, to += 64) {
      Codes32 bytes;
      std::memcpy(&bytes, codes, sizeof bytes);
      const Halves32 indices = __builtin_convertvector(bytes, Halves32);
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16((__m512i)indices, values));
      _mm512_storeu_si512(to + 32, _mm512_permutexvar_epi16((__m512i)(indices >> 4), values));
    }
  }

 private:
  using Codes32 = uint8_t __attribute__((vector_size(32)));
  using Halves32 = uint16_t __attribute__((vector_size(64)));
  alignas(64) Bfloat16 values_[32];
};
#endif

template <class Element>
void decode_bytes(const int8_t* codes, int64_t n, Element* to) {
  alignas(64) float values[64];
  for (int64_t i = 0; i < n; i += 64) {
    const int64_t count = std::min<int64_t>(64, n - i);
    for (int64_t j = 0; j < count; ++j) values[j] = float(codes[i + j]);
    copy_row(values, to + i, count);
  }
}

// Decode `n` codes from number `at` of the weight on.
template <class Element>
void decode(const QuantizedLinearArgs& args, const Nibbles<Element>& nibbles, int64_t at, int64_t n, Element* to) {
  const auto* codes = static_cast<const uint8_t*>(args.codes);
  if (args.element == kNibbles) nibbles.decode(codes + at / 2, n, to);
  else if (args.element == kFloat8) copy_row(reinterpret_cast<const E4m3*>(codes) + at, to, n);
  else decode_bytes(reinterpret_cast<const int8_t*>(codes) + at, n, to);
}

// Sums of products of rows with a decoded panel. Few rows take what is decoded a step at a time.
template <class Number>
class ChunkProduct {
 public:
  static constexpr int64_t kFewRows = kPackedTileRows;

  void begin(int64_t num_rows, int64_t, float* sums) { std::fill(sums, sums + num_rows * kPackedPanelWidth, 0.0f); }

  void add(PackedBlock<Number> block, int64_t num_rows, float* sums) {
    for (int64_t row = 0; row < num_rows; row += kPackedTileRows) {
      const int64_t rows = std::min<int64_t>(kPackedTileRows, num_rows - row);
      kTilesByRows<Number, false>[rows - 1](block, Prefetch(), sums + row * kPackedPanelWidth);
      block.x += rows * block.x_stride;
    }
  }

  void end(float*) {}
};

#if BATON_TILES
// The same with AMX: tiles 0 to 3 are the sums of up to 16 rows, 4 and 6 hold rows of x, 5 and 7 weights; 6 and 7 are those
// of the last pairs of inputs, fewer than 16.
template <>
class ChunkProduct<Pair> {
 public:
  static constexpr int64_t kFewRows = 16;

  void begin(int64_t num_rows, int64_t size, float*) {
    if (num_rows > kFewRows) return;
    configure(num_rows, size % kStepPairs);
    zero_sums();
  }

  void add(PackedBlock<Pair> block, int64_t num_rows, float* sums) {
    if (num_rows <= kFewRows) return multiply(block);
    for (int64_t row = 0; row < num_rows; row += kFewRows, block.x += kFewRows * block.x_stride) {
      configure(std::min(kFewRows, num_rows - row), block.size % kStepPairs);
      zero_sums();
      multiply(block);
      store_sums(sums + row * kPackedPanelWidth);
    }
    is_stored_ = true;
  }

  void end(float* sums) {
    if (!is_stored_) store_sums(sums);
  }

 private:
  static constexpr int64_t kStride = kPackedPanelWidth * sizeof(Pair);
  static_assert(kPackedPanelWidth == 64 && sizeof(Pair) == sizeof(float));

  static void multiply(const PackedBlock<Pair>& block) {
    const int64_t x_stride = block.x_stride * sizeof(Bfloat16), whole = block.size / kStepPairs;
    const Bfloat16* x = block.x;
    const Pair* weights = block.weights;
    for (int64_t k = 0; k < whole; ++k, x += 2 * kStepPairs, weights += kStepPairs * kPackedPanelWidth) {
      load_tile<4>(x, x_stride);
      load_tile<5>(weights, kStride), multiply_tiles<0, 4, 5>();
      load_tile<5>(weights + 16, kStride), multiply_tiles<1, 4, 5>();
      load_tile<5>(weights + 32, kStride), multiply_tiles<2, 4, 5>();
      load_tile<5>(weights + 48, kStride), multiply_tiles<3, 4, 5>();
    }
    if (block.size % kStepPairs == 0) return;
    load_tile<6>(x, x_stride);
    load_tile<7>(weights, kStride), multiply_tiles<0, 6, 7>();
    load_tile<7>(weights + 16, kStride), multiply_tiles<1, 6, 7>();
    load_tile<7>(weights + 32, kStride), multiply_tiles<2, 6, 7>();
    load_tile<7>(weights + 48, kStride), multiply_tiles<3, 6, 7>();
  }

  static void zero_sums() { zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>(); }

  static void store_sums(float* to) {
    store_tile<0>(to, kStride), store_tile<1>(to + 16, kStride);
    store_tile<2>(to + 32, kStride), store_tile<3>(to + 48, kStride);
  }

  void configure(int64_t num_rows, int64_t rest) {
    if (num_rows == num_rows_ && rest == rest_) return;
    num_rows_ = num_rows, rest_ = rest;
    TileConfiguration all{};
    all.palette = 1;
    for (int tile = 0; tile < 8; ++tile) all.row_bytes[tile] = 64, all.num_rows[tile] = num_rows;
    all.num_rows[5] = kStepPairs;
    all.num_rows[7] = std::max<int64_t>(rest, 1);
    all.row_bytes[6] = 4 * std::max<int64_t>(rest, 1);
    configure_tiles(all);
  }

  const TileSession session_;
  int64_t num_rows_ = 0, rest_ = 0;
  bool is_stored_ = false;
};
#endif

// A vector of numbers that are kept as bfloat16 or as float32.
inline Floats load_either(const void* from, int64_t at, bool is_bfloat16) {
  return is_bfloat16 ? load(static_cast<const Bfloat16*>(from) + at) : load(static_cast<const float*>(from) + at);
}

inline int64_t pass_rows(const QuantizedLinearArgs& args) {
  return args.chunk < kShortChunk ? kShortChunkRows : kQuantizedRows;
}

inline int64_t num_chunks(const QuantizedLinearArgs& args) { return (args.in_features + args.chunk - 1) / args.chunk; }

// Sums of each chunk of each row, which zero points are multiplied with: [num_rows, num_chunks].
template <class Element>
void sum_inputs(const QuantizedLinearArgs& args, int64_t row, float* sums) {
  const auto* x = static_cast<const Element*>(args.x) + row * args.x_stride;
  for (int64_t chunk = 0, k = 0; k < args.in_features; ++chunk, k += args.chunk) {
    const int64_t n = std::min(args.chunk, args.in_features - k);
    Floats total{};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) total += load(x + k + i);
    float rest = 0;
    for (; i < n; ++i) rest += widen(x[k + i]);
    for (int lane = 0; lane < kLanes; ++lane) rest += total[lane];
    sums[row * num_chunks(args) + chunk] = rest;
  }
}

// One panel's outputs of `num_rows` rows from `first` on, in float32.
template <class Number>
void quantized_panel(const QuantizedLinearArgs& args, const float* input_sums, int64_t first, int64_t num_rows,
                     int64_t panel, float* totals) {
  using Element = typename Packing<Number>::Element;
  const Nibbles<Element> nibbles(args.table);
  ChunkProduct<Number> product;
  constexpr int64_t kDepth = Packing<Number>::kDepth, kWidth = kPackedPanelWidth;
  alignas(64) Number weights[kChunkInputs / kDepth * kWidth];
  alignas(64) float sums[kQuantizedRows * kWidth];
  const auto* x = static_cast<const Element*>(args.x) + first * args.x_stride;
  const int64_t num_groups = (args.in_features + args.group_size - 1) / args.group_size;
  std::fill(totals, totals + num_rows * kWidth, 0.0f);
  for (int64_t chunk = 0, k = 0; k < args.in_features; ++chunk, k += args.chunk) {
    const int64_t n = std::min(args.chunk, args.in_features - k), size = (n + kDepth - 1) / kDepth;
    const int64_t at = panel * round_up(args.in_features, kDepth) + k;
    const int64_t step = num_rows <= ChunkProduct<Number>::kFewRows ? kStepPairs : size;
    product.begin(num_rows, size, sums);
    for (int64_t j = 0; j < size; j += step) {
      const int64_t count = std::min(step, size - j);
      decode(args, nibbles, (at + j * kDepth) * kWidth, count * kDepth * kWidth, reinterpret_cast<Element*>(weights));
      product.add({x + k + j * kDepth, args.x_stride, weights, count}, num_rows, sums);
    }
    product.end(sums);
    const int64_t place = (panel * num_groups + k / args.group_size) * kWidth;
    for (int i = 0; i < kWidth; i += kLanes) {
      const Floats scale = load_either(args.scales, place + i, args.has_bfloat16_scales);
      const Floats zero = args.zeros ? load(args.zeros + place + i) : Floats{};
      for (int64_t row = 0; row < num_rows; ++row) {
        Floats sum = load(sums + row * kWidth + i);
        if (args.zeros) sum -= zero * splat(input_sums[(first + row) * num_chunks(args) + chunk]);
        if (args.x_scales)
          sum *= splat(args.x_scales[(first + row) * args.num_x_groups + k / args.x_group_size]);
        float* total = totals + row * kWidth + i;
        store(total, load(total) + sum * scale);
      }
    }
  }
  for (int i = 0; i < kWidth; i += kLanes) {
    const Floats scale = args.output_scales ? load(args.output_scales + panel * kWidth + i) : splat(1.0f);
    const Floats bias = args.bias ? load(args.bias + panel * kWidth + i) : Floats{};
    for (int64_t row = 0; row < num_rows; ++row) {
      float* total = totals + row * kWidth + i;
      store(total, load(total) * scale + bias);
    }
  }
}

// The outputs of one panel, or of two that are gated with each other, for the rows of a pass from `first` on.
template <class Number>
void quantized_piece(const QuantizedLinearArgs& args, const float* input_sums, int64_t first, int64_t panel) {
  const int64_t num_rows = std::min(pass_rows(args), args.num_rows - first), width = output_width(args);
  alignas(64) float totals[kQuantizedRows * kPackedPanelWidth], factors[kQuantizedRows * kPackedPanelWidth];
  quantized_panel<Number>(args, input_sums, first, num_rows, panel, totals);
  if (args.function != kNotGated) {
    quantized_panel<Number>(args, input_sums, first, num_rows, panel + width / kPackedPanelWidth, factors);
    gate(static_cast<Function>(args.function), totals, factors, num_rows * kPackedPanelWidth);
  }
  const int64_t num_outs = std::min<int64_t>(kPackedPanelWidth, width - panel * kPackedPanelWidth);
  for (int64_t row = 0; row < num_rows; ++row)
    store_row(totals + row * kPackedPanelWidth, num_outs, args.is_bfloat16, args.out,
              (first + row) * width + panel * kPackedPanelWidth);
}

template <class Number>
void quantized_linear(const QuantizedLinearArgs& args, float* input_sums) {
  using Element = typename Packing<Number>::Element;
  if (args.zeros)
    parallel_for(args.num_threads, args.num_rows, 1,
                 [&](int64_t row, int64_t) noexcept { sum_inputs<Element>(args, row, input_sums); });
  const int64_t num_panels = (output_width(args) + kPackedPanelWidth - 1) / kPackedPanelWidth;
  const int64_t most = pass_rows(args), num_pieces = (args.num_rows + most - 1) / most;
  parallel_for(args.num_threads, num_pieces * num_panels, 1, [&](int64_t index, int64_t) noexcept {
    quantized_piece<Number>(args, input_sums, index / num_panels * most, index % num_panels);
  });
}

}  // namespace baton
