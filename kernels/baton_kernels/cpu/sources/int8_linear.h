// Linear layers of 8-bit integers: the rows of x are quantized, products are summed in 32 bits, and only the finished
// sums are scaled. So a row's numbers depend on the row alone.
#pragma once

#include <iterator>

#include "prefetch.h"
#include "thread_pool.h"
#include "gemm_panel.h"
#include "quantize.h"
#include "norms_activations.h"
#include "structs.h"
#if BATON_TILES
#include "amx_linear.h"
#endif

namespace baton {

// AMX multiplies signed codes in tiles, whose rows have whole lines of inputs.
#if BATON_TILES
constexpr int kInt8PanelWidth = kTileOutputs, kInt8Multiple = kTileRowBytes;
#else
constexpr int kInt8PanelWidth = kPanelWidth, kInt8Multiple = 4;
#endif

// AVX512-VNNI adds four products in one instruction, of which one factor is unsigned.
inline bool has_vnni() {
#if BATON_EMULATED
  return true;
#elif BATON_LANES == 16
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
#else
  return false;
#endif
}

// The codes of x, with 128 added for VNNI, and the rows' scales.
struct QuantizedRows {
  int64_t width;      // in_features, padded
  float* scales;      // [num_rows]
  uint8_t* codes;     // [num_rows, width]

  static int64_t width_of(const Int8LinearArgs& args) { return round_up(args.in_features, kInt8Multiple); }
  static int64_t size_of(const Int8LinearArgs& args) {   // in floats, whole cache lines
    return round_up(args.num_rows, 16) + round_up(args.num_rows * width_of(args) / 4, 16);
  }
  QuantizedRows(const Int8LinearArgs& args, float* place)
      : width(width_of(args)), scales(place),
        codes(reinterpret_cast<uint8_t*>(place + round_up(args.num_rows, 16))) {}

  void fill(const Int8LinearArgs& args, int64_t row) const {
    uint8_t* to = codes + row * width;
    auto* signed_codes = reinterpret_cast<int8_t*>(to);
    const int64_t from = row * args.x_stride, size = args.in_features;
    if (args.is_bfloat16)
      quantize_row(static_cast<const Bfloat16*>(args.x) + from, size, signed_codes, scales + row);
    else
      quantize_row(static_cast<const float*>(args.x) + from, size, signed_codes, scales + row);
    if (!kHasTiles && has_vnni())
      for (int64_t i = 0; i < size; ++i) to[i] ^= 0x80;
    std::fill(to + size, to + width, uint8_t{0});   // meets weights of zero
  }
};

constexpr int kTileCodes = 8;   // rows that are multiplied together
constexpr int64_t kInt8PrefetchBytes = 4 << 10;   // distance of the prefetch of a single tile

#if BATON_EMULATED
#define BATON_VNNI
#else
#define BATON_VNNI __attribute__((target("avx512f,avx512vnni")))
#endif

#if BATON_LANES == 16
// sums[row] = codes[row] @ panel, for kRows rows; sums are kPanelWidth wide.
template <int kRows, bool kPrefetches>
BATON_VNNI void sum_vnni(Matrix<const uint8_t> codes, const int8_t* panel, int64_t width, Prefetch prefetch,
                         Matrix<int32_t> sums) {
  constexpr int kVectors = kPanelWidth / 16;
  __m512i totals[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) totals[row][i] = _mm512_setzero_si512();
  for (int64_t k = 0; k < width; k += 4, panel += 4 * kPanelWidth) {
    if constexpr (kPrefetches) prefetch.issue<kSecondCache>();
    __m512i weights[kVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) weights[i] = _mm512_loadu_si512(panel + 64 * i);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      int32_t quad;
      std::memcpy(&quad, codes.row(row) + k, sizeof quad);
      const __m512i factor = _mm512_set1_epi32(quad);
#pragma GCC unroll 2
      for (int i = 0; i < kVectors; ++i)
        totals[row][i] = _mm512_dpbusd_epi32(totals[row][i], factor, weights[i]);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) _mm512_storeu_si512(sums.row(row) + 16 * i, totals[row][i]);
}
#endif

#if defined(__x86_64__)
// The same for signed codes. The weights' signs move to the rows' codes, which are never -128 and so have a negative:
// two products of at most 128 * 127 each fit the 16 bits in which AVX2 adds them.
template <int kRows, bool kPrefetches>
__attribute__((target("avx2"))) void sum_avx2(Matrix<const uint8_t> codes, const int8_t* panel, int64_t width,
                                              Prefetch prefetch, Matrix<int32_t> sums) {
  constexpr int kVectors = kPanelWidth / 8;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i totals[kRows][kVectors];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) totals[row][i] = _mm256_setzero_si256();
  for (int64_t k = 0; k < width; k += 4, panel += 4 * kPanelWidth) {
    if constexpr (kPrefetches) prefetch.issue<kSecondCache>();
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      int32_t quad;
      std::memcpy(&quad, codes.row(row) + k, sizeof quad);
      const __m256i factor = _mm256_set1_epi32(quad);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + 32 * i));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(factor, weights));
        totals[row][i] = _mm256_add_epi32(totals[row][i], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums.row(row) + 8 * i), totals[row][i]);
}

using SumTile = void (*)(Matrix<const uint8_t>, const int8_t*, int64_t, Prefetch, Matrix<int32_t>);

// By the number of rows; AVX2 has registers for the sums of two rows, the weights and temporaries.
template <bool kPrefetches>
constexpr SumTile kAvx2Tiles[] = {sum_avx2<1, kPrefetches>, sum_avx2<2, kPrefetches>};

#if BATON_LANES == 16
template <bool kPrefetches>
constexpr SumTile kVnniTiles[] = {sum_vnni<1, kPrefetches>, sum_vnni<2, kPrefetches>, sum_vnni<3, kPrefetches>, sum_vnni<4, kPrefetches>,
                                  sum_vnni<5, kPrefetches>, sum_vnni<6, kPrefetches>, sum_vnni<7, kPrefetches>, sum_vnni<8, kPrefetches>};

inline int64_t rows_of_tile() { return has_vnni() ? std::size(kVnniTiles<true>) : std::size(kAvx2Tiles<true>); }

template <bool kPrefetches>
const SumTile* sum_tiles() {
  return has_vnni() ? kVnniTiles<kPrefetches> : kAvx2Tiles<kPrefetches>;
}
#else
inline int64_t rows_of_tile() { return std::size(kAvx2Tiles<true>); }

template <bool kPrefetches>
const SumTile* sum_tiles() {
  return kAvx2Tiles<kPrefetches>;
}
#endif

// sums = codes @ panel for any number of rows.
inline void sum_rows(Matrix<const uint8_t> codes, const int8_t* panel, int64_t width, Prefetch prefetch,
                     Matrix<int32_t> sums, int64_t num_rows) {
  const SumTile* tiles = prefetch.is_enabled() ? sum_tiles<true>() : sum_tiles<false>();
  const int64_t most = rows_of_tile();
  for (int64_t row = 0; row < num_rows; row += most)
    tiles[std::min(most, num_rows - row) - 1](codes.from(row), panel, width,
                                              prefetch.after(row / most * (width / 4)), sums.from(row));
}
#else
inline int64_t rows_of_tile() { return 1; }

inline void sum_rows(Matrix<const uint8_t> codes, const int8_t* panel, int64_t width, Prefetch, Matrix<int32_t> sums,
                     int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row)
    for (int o = 0; o < kPanelWidth; ++o) {
      int32_t total = 0;
      for (int64_t k = 0; k < width; ++k)
        total += int8_t(codes.row(row)[k]) * panel[k / 4 * 4 * kPanelWidth + 4 * o + k % 4];
      sums.row(row)[o] = total;
    }
}
#endif

// The prefetch of the tile that begins with row `first`: the tiles share that of the next panel; a single tile
// prefetches its own.
inline Prefetch prefetch_codes(const Int8LinearArgs& args, const QuantizedRows& rows, const int8_t* panel,
                           int64_t first) {
  const int64_t most = rows_of_tile(), num_tiles = (args.num_rows + most - 1) / most;
  const int64_t ahead = num_tiles == 1 ? kInt8PrefetchBytes : kPanelWidth * rows.width;
  return share_prefetch(panel + ahead, 4 * kPanelWidth, rows.width / 4, num_tiles, first / most);
}

// Return the sums of a row's codes with those of kLanes outputs from `out` on, times both scales, and the bias.
inline Floats scale_sums(const Int8LinearArgs& args, int64_t out, float row_scale, const int32_t* sums) {
  Ints integers;
  std::memcpy(&integers, sums, sizeof integers);
  const Floats numbers = __builtin_convertvector(integers, Floats) * load(args.scales + out) * row_scale;
  return args.bias ? numbers + load(args.bias + out) : numbers;
}

// One panel's outputs of `count` rows from `first` on, at most kTileCodes, [count, kPanelWidth].
inline void int8_linear_tile(const Int8LinearArgs& args, const QuantizedRows& rows, int64_t panel, int64_t first,
                               int64_t count, float* numbers) {
  const int64_t out = panel * kPanelWidth;
  const int32_t* offsets = args.offsets + out;
  alignas(64) int32_t sums[kTileCodes * kPanelWidth];
  const int8_t* weights = args.packed_weight + out * rows.width;
  sum_rows({rows.codes + first * rows.width, rows.width}, weights, rows.width,
           prefetch_codes(args, rows, weights, first), {sums, kPanelWidth}, count);
  for (int64_t row = 0; row < count; ++row, numbers += kPanelWidth) {
    if (has_vnni())
      for (int o = 0; o < kPanelWidth; ++o)   // modulo 2^32, as the instruction adds
        sums[row * kPanelWidth + o] = int32_t(uint32_t(sums[row * kPanelWidth + o]) - uint32_t(offsets[o]));
    for (int o = 0; o < kPanelWidth; o += kLanes)
      store(numbers + o, scale_sums(args, out + o, rows.scales[first + row], sums + row * kPanelWidth + o));
  }
}

// The outputs of one panel, or of two that are gated with each other, for all rows.
inline void int8_linear_panel(const Int8LinearArgs& args, const QuantizedRows& rows, int64_t panel) {
  const int64_t width = output_width(args), num_outs = std::min<int64_t>(kPanelWidth, width - panel * kPanelWidth);
  for (int64_t first = 0; first < args.num_rows; first += kTileCodes) {
    const int64_t count = std::min<int64_t>(kTileCodes, args.num_rows - first);
    alignas(64) float numbers[kTileCodes * kPanelWidth], factors[kTileCodes * kPanelWidth];
    int8_linear_tile(args, rows, panel, first, count, numbers);
    if (args.function != kNotGated) {
      int8_linear_tile(args, rows, panel + width / kPanelWidth, first, count, factors);
      gate(static_cast<Function>(args.function), numbers, factors, count * kPanelWidth);
    }
    for (int64_t row = 0; row < count; ++row)
      store_row(numbers + row * kPanelWidth, num_outs, args.is_bfloat16, args.out,
                (first + row) * width + panel * kPanelWidth);
  }
}

#if BATON_TILES
// A layer of codes in tiles; sums are integers, and begin with 0.
struct Int8Layer {
  const Int8LinearArgs& args;
  const QuantizedRows& rows;

  TileOperands operands() const {
    return {.x = reinterpret_cast<const char*>(rows.codes),
            .weights = reinterpret_cast<const char*>(args.packed_weight),
            .out = static_cast<const char*>(args.out),
            .x_stride = rows.width,
            .out_stride = output_width(args) * out_bytes(args),
            .out_bytes = out_bytes(args),
            .depth = rows.width / kTileRowBytes,
            .num_rows = args.num_rows,
            .out_features = args.out_features,
            .num_threads = args.num_threads,
            .is_gated = args.function != kNotGated};
  }

  template <int kTo, int kRows, int kColumns>
  static void multiply() {
    multiply_code_tiles<kTo, kRows, kColumns>();
  }

  void begin(int64_t, float*) const {}

  void write(const float* sums, int64_t row, int64_t count, int64_t column) const {
    const int64_t width = output_width(args);
    const bool is_gated = args.function != kNotGated;
    const auto* integers = reinterpret_cast<const int32_t*>(sums);
    for (; count > 0; --count, ++row, integers += kSumWidth) {
      const float scale = rows.scales[row];
      Floats left = scale_sums(args, column, scale, integers);
      const int64_t second = is_gated ? width + column : std::min(column + kTileOutputs, width - 1) / kTileOutputs * kTileOutputs;
      const Floats right = scale_sums(args, second, scale, integers + kTileOutputs);
      if (is_gated) left = apply(static_cast<Function>(args.function), left) * right;
      const int64_t num_outs = is_gated ? kTileOutputs : std::min(kSumWidth, width - column);
      if (args.is_bfloat16) write_tile_row(static_cast<Bfloat16*>(args.out) + row * width + column, left, right, num_outs);
      else write_tile_row(static_cast<float*>(args.out) + row * width + column, left, right, num_outs);
    }
  }
};
#endif

// Return the floats of scratch memory that a layer needs.
inline int64_t int8_scratch_size(const Int8LinearArgs& args) {
  const int64_t size = QuantizedRows::size_of(args);
#if BATON_TILES
  const QuantizedRows rows(args, nullptr);
  return size + args.num_threads * TileLinearPlan(Int8Layer{args, rows}.operands()).scratch_size();
#else
  return size;
#endif
}

inline void int8_linear(const Int8LinearArgs& args, float* scratch) {
  const QuantizedRows rows(args, scratch);
  parallel_for(args.num_threads, args.num_rows, 1, [&](int64_t row, int64_t) noexcept { rows.fill(args, row); });
#if BATON_TILES
  const Int8Layer layer{args, rows};
  amx_linear(layer, TileLinearPlan(layer.operands()), scratch + QuantizedRows::size_of(args));
#else
  const int64_t num_panels = (output_width(args) + kPanelWidth - 1) / kPanelWidth;
  parallel_for(args.num_threads, num_panels, 1,
           [&](int64_t panel, int64_t) noexcept { int8_linear_panel(args, rows, panel); });
#endif
}

}  // namespace baton
