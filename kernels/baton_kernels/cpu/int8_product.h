// Linear layers of 8-bit integers: the rows of x are quantized on the way, products are summed in 32 bits,
// and only the finished sums become numbers again. So a row's numbers depend on nothing but the row.
#pragma once

#include <iterator>

#include "early.h"
#include "helpers.h"
#include "panels.h"
#include "quantize.h"
#include "row_functions.h"

// The caller's mirror of this struct is int8_library.py.
struct BatonInt8Product {
  const void* x;                // [num_rows, in_features]
  const int8_t* panels;         // [num_panels, width / 4, kPanel, 4], zeros outside the weight
  const int32_t* offsets;       // [num_panels * kPanel], what each output has too much if codes are 128 too large
  const float* scales;          // [num_panels * kPanel], of each output
  const float* bias;            // [num_panels * kPanel] or null
  void* out;                    // [num_rows, out_features], or half of it if gated
  int64_t x_stride;             // elements between the rows of x
  int64_t num_rows, in_features, out_features;
  int64_t num_threads;
  int32_t is_bfloat16;          // x and out; float32 otherwise
  int32_t function;             // of both halves of the outputs, whole panels each, as in packed.h; or kNotGated

  int64_t width() const { return function == baton::kNotGated ? out_features : out_features / 2; }
};

namespace baton {

// Whether four products are added in one instruction, which wants one factor without sign.
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

// The codes of x, with 128 added for the instruction, and the rows' scales.
struct QuantizedRows {
  int64_t width;      // in_features in whole quads
  float* scales;      // [num_rows]
  uint8_t* codes;     // [num_rows, width]

  static int64_t width_of(const BatonInt8Product& step) { return round_up(step.in_features, 4); }
  static int64_t size_of(const BatonInt8Product& step) {   // in floats
    return step.num_rows * (1 + width_of(step) / 4);
  }
  QuantizedRows(const BatonInt8Product& step, float* place)
      : width(width_of(step)), scales(place), codes(reinterpret_cast<uint8_t*>(place + step.num_rows)) {}

  void fill(const BatonInt8Product& step, int64_t row) const {
    uint8_t* to = codes + row * width;
    auto* signed_codes = reinterpret_cast<int8_t*>(to);
    const int64_t from = row * step.x_stride, size = step.in_features;
    if (step.is_bfloat16)
      quantize_row(static_cast<const Bfloat16*>(step.x) + from, size, signed_codes, scales + row);
    else
      quantize_row(static_cast<const float*>(step.x) + from, size, signed_codes, scales + row);
    if (has_vnni())
      for (int64_t i = 0; i < size; ++i) to[i] ^= 0x80;
    std::fill(to + size, to + width, uint8_t{0});   // meets weights of zero
  }
};

constexpr int kTileCodes = 8;   // rows that are multiplied together
constexpr int64_t kAheadCodes = 4 << 10;   // of weights, which a single tile asks for early

#if BATON_EMULATED
#define BATON_VNNI
#else
#define BATON_VNNI __attribute__((target("avx512f,avx512vnni")))
#endif

#if BATON_LANES == 16
// sums[row] = codes[row] @ panel, for kRows rows; sums are kPanel wide.
template <int kRows, bool kAsks>
BATON_VNNI void sum_vnni(Rows<const uint8_t> codes, const int8_t* panel, int64_t width, Early early,
                         Rows<int32_t> sums) {
  constexpr int kVectors = kPanel / 16;
  __m512i totals[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) totals[row][i] = _mm512_setzero_si512();
  for (int64_t k = 0; k < width; k += 4, panel += 4 * kPanel) {
    if constexpr (kAsks) early.ask();
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
// The same of codes with their sign. The sign moves to the weights: so two products of at most 127 * 127 each fit the
// 16 bits that AVX2 adds them in.
template <int kRows, bool kAsks>
__attribute__((target("avx2"))) void sum_avx2(Rows<const uint8_t> codes, const int8_t* panel, int64_t width,
                                              Early early, Rows<int32_t> sums) {
  constexpr int kVectors = kPanel / 8;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i totals[kRows][kVectors];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) totals[row][i] = _mm256_setzero_si256();
  for (int64_t k = 0; k < width; k += 4, panel += 4 * kPanel) {
    if constexpr (kAsks) early.ask();
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      int32_t quad;
      std::memcpy(&quad, codes.row(row) + k, sizeof quad);
      const __m256i factor = _mm256_set1_epi32(quad), size = _mm256_abs_epi8(factor);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + 32 * i));
        const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(weights, factor));
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

using SumTile = void (*)(Rows<const uint8_t>, const int8_t*, int64_t, Early, Rows<int32_t>);

// By the number of rows; AVX2 has registers for the sums of two, weights and what comes between.
template <bool kAsks>
constexpr SumTile kAvx2Tiles[] = {sum_avx2<1, kAsks>, sum_avx2<2, kAsks>};

#if BATON_LANES == 16
template <bool kAsks>
constexpr SumTile kVnniTiles[] = {sum_vnni<1, kAsks>, sum_vnni<2, kAsks>, sum_vnni<3, kAsks>, sum_vnni<4, kAsks>,
                                  sum_vnni<5, kAsks>, sum_vnni<6, kAsks>, sum_vnni<7, kAsks>, sum_vnni<8, kAsks>};

inline int64_t rows_of_tile() { return has_vnni() ? std::size(kVnniTiles<true>) : std::size(kAvx2Tiles<true>); }

template <bool kAsks>
const SumTile* sum_tiles() {
  return has_vnni() ? kVnniTiles<kAsks> : kAvx2Tiles<kAsks>;
}
#else
inline int64_t rows_of_tile() { return std::size(kAvx2Tiles<true>); }

template <bool kAsks>
const SumTile* sum_tiles() {
  return kAvx2Tiles<kAsks>;
}
#endif

// The same for any number of rows.
inline void sum_rows(Rows<const uint8_t> codes, const int8_t* panel, int64_t width, Early early,
                     Rows<int32_t> sums, int64_t num_rows) {
  const SumTile* tiles = early.asks() ? sum_tiles<true>() : sum_tiles<false>();
  const int64_t most = rows_of_tile();
  for (int64_t row = 0; row < num_rows; row += most)
    tiles[std::min(most, num_rows - row) - 1](codes.from(row), panel, width,
                                              early.after(row / most * (width / 4)), sums.from(row));
}
#else
inline int64_t rows_of_tile() { return 1; }

inline void sum_rows(Rows<const uint8_t> codes, const int8_t* panel, int64_t width, Early, Rows<int32_t> sums,
                     int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row)
    for (int o = 0; o < kPanel; ++o) {
      int32_t total = 0;
      for (int64_t k = 0; k < width; ++k)
        total += int8_t(codes.row(row)[k]) * panel[k / 4 * 4 * kPanel + 4 * o + k % 4];
      sums.row(row)[o] = total;
    }
}
#endif

// What the tile that begins with row `first` asks for: they share the asking for the panel behind theirs; a
// single one asks for what it soon reads itself.
inline Early ask_for_codes(const BatonInt8Product& step, const QuantizedRows& rows, const int8_t* panel,
                           int64_t first) {
  const int64_t most = rows_of_tile(), num_tiles = (step.num_rows + most - 1) / most;
  const int64_t ahead = num_tiles == 1 ? kAheadCodes : kPanel * rows.width;
  return share_early(panel + ahead, 4 * kPanel, rows.width / 4, num_tiles, first / most);
}

// One panel's outputs of `count` rows from `first` on, at most kTileCodes, [count, kPanel].
inline void multiply_int8_tile(const BatonInt8Product& step, const QuantizedRows& rows, int64_t panel, int64_t first,
                               int64_t count, float* numbers) {
  const int64_t out = panel * kPanel;
  const int32_t* offsets = step.offsets + out;
  const float* scales = step.scales + out;
  alignas(64) int32_t sums[kTileCodes * kPanel];
  const int8_t* weights = step.panels + out * rows.width;
  sum_rows({rows.codes + first * rows.width, rows.width}, weights, rows.width,
           ask_for_codes(step, rows, weights, first), {sums, kPanel}, count);
  for (int64_t row = 0; row < count; ++row, numbers += kPanel) {
    if (has_vnni())
      for (int o = 0; o < kPanel; ++o)   // modulo 2^32 on the way, as the instruction adds
        sums[row * kPanel + o] = int32_t(uint32_t(sums[row * kPanel + o]) - uint32_t(offsets[o]));
    for (int o = 0; o < kPanel; ++o)
      numbers[o] = float(sums[row * kPanel + o]) * scales[o] * rows.scales[first + row];
    if (step.bias)
      for (int o = 0; o < kPanel; ++o) numbers[o] += step.bias[out + o];
  }
}

// The outputs of one panel, or of two that are gated with each other, for all rows.
inline void multiply_int8_panel(const BatonInt8Product& step, const QuantizedRows& rows, int64_t panel) {
  const int64_t width = step.width(), num_outs = std::min<int64_t>(kPanel, width - panel * kPanel);
  for (int64_t first = 0; first < step.num_rows; first += kTileCodes) {
    const int64_t count = std::min<int64_t>(kTileCodes, step.num_rows - first);
    alignas(64) float numbers[kTileCodes * kPanel], factors[kTileCodes * kPanel];
    multiply_int8_tile(step, rows, panel, first, count, numbers);
    if (step.function != kNotGated) {
      multiply_int8_tile(step, rows, panel + width / kPanel, first, count, factors);
      gate(static_cast<Function>(step.function), numbers, factors, count * kPanel);
    }
    for (int64_t row = 0; row < count; ++row)
      store_row(numbers + row * kPanel, num_outs, step.is_bfloat16, step.out,
                (first + row) * width + panel * kPanel);
  }
}

inline void multiply_int8(const BatonInt8Product& step, float* scratch) {
  const QuantizedRows rows(step, scratch);
  const int64_t num_panels = (step.width() + kPanel - 1) / kPanel;
  for_each(step.num_threads, step.num_rows, 1, [&](int64_t row, int64_t) noexcept { rows.fill(step, row); });
  for_each(step.num_threads, num_panels, 1,
           [&](int64_t panel, int64_t) noexcept { multiply_int8_panel(step, rows, panel); });
}

}  // namespace baton
