// Vectors of kLanes floats in the compiler's portable vector types, so that one source serves every
// instruction set: BATON_LANES is 16 (AVX-512), 8 (AVX2) or 4 (anything).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if BATON_EMULATED
#include "avx512_emulated.h"
#endif

namespace baton {

constexpr int kLanes = BATON_LANES;
#if BATON_TILES
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif
constexpr float kLog2E = 1.44269504088896340736f;

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));
using Bfloat16 = uint16_t;  // the upper half of a float

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

inline Floats splat(float x) { return x - Floats{}; }

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// Numbers of 16 and of 8 bits as integers. The compiler's own conversions take them in parts, or one by one.
inline Words load_halves(const uint16_t* from) {
#if BATON_LANES == 16 && defined(__AVX512F__)
  return (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif BATON_LANES == 8 && defined(__AVX2__)
  return (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return __builtin_convertvector(halves, Words);
#endif
}

template <class Byte>
inline Ints load_bytes(const Byte* from) {
  static_assert(sizeof(Byte) == 1);
#if BATON_LANES == 16 && defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Ints)(std::is_signed_v<Byte> ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif BATON_LANES == 8 && defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return (Ints)(std::is_signed_v<Byte> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
  Byte bytes __attribute__((vector_size(kLanes)));
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, Ints);
#endif
}

inline Floats load(const Bfloat16* from) { return (Floats)(load_halves(from) << 16); }

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline float widen(float x) { return x; }

inline float widen(Bfloat16 x) {
  const uint32_t bits = uint32_t{x} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Round to nearest, ties to even; NaN stays NaN.
inline Bfloat16 to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<Bfloat16>(bits >> 16 | 0x40);
  return static_cast<Bfloat16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void store(Bfloat16* to, Floats x) {
  const Words bits = (Words)x;
  const Words rounded = x == x ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000;
  const Halves upper = __builtin_convertvector(rounded >> 16, Halves);
  std::memcpy(to, &upper, sizeof upper);
}

inline void put(float* to, float x) { *to = x; }

inline void put(Bfloat16* to, float x) { *to = to_bfloat16(x); }

inline void copy_row(const float* from, float* to, int64_t n) { std::memcpy(to, from, n * sizeof *to); }

inline void copy_row(const Bfloat16* from, Bfloat16* to, int64_t n) {
  std::memcpy(to, from, n * sizeof *to);
}

inline void copy_row(const Bfloat16* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = widen(from[i]);
}

inline void copy_row(const float* from, Bfloat16* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = to_bfloat16(from[i]);
}

// Return true if any lane is.
inline bool any(Ints lanes) {
#if BATON_LANES == 16 && defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#elif BATON_LANES == 8 && defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)lanes, (__m256i)lanes);
#else
  bool is_any = false;
  for (int lane = 0; lane < kLanes; ++lane) is_any |= lanes[lane] != 0;
  return is_any;
#endif
}

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

// 2^x for x <= 0; below 2^-126 the result is 2^-126. The power series of 2^f has its error under 2e-7 for
// |f| <= 1/2.
inline Floats exp2_nonpositive(Floats x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits behind the point
  constexpr double kLn2 = 0.693147180559945309417;
  x = x < -126.0f ? splat(-126.0f) : x;  // keeps NaN
  const Floats whole = (x + kRound) - kRound;
  const Floats f = x - whole;
  constexpr double c2 = kLn2 * kLn2 / 2, c3 = c2 * kLn2 / 3, c4 = c3 * kLn2 / 4, c5 = c4 * kLn2 / 5;
  Floats power = splat(float(c5 * kLn2 / 6));
  for (double c : {c5, c4, c3, c2, kLn2, 1.0}) power = power * f + float(c);
  const Ints exponent = (__builtin_convertvector(whole, Ints) + 127) << 23;
  return power * (Floats)exponent;
}

// cap * tanh(x / cap), through the exponential function of a number that is not positive.
inline Floats soft_cap(Floats x, float cap) {
  constexpr float kTwoLog2E = 2.88539008177792681472f;
  const Floats size = x < 0.0f ? -x : x;
  const Floats e = exp2_nonpositive(size * (-kTwoLog2E / cap));
  const Floats capped = (1.0f - e) / (1.0f + e) * cap;
  return x < 0.0f ? -capped : capped;
}

template <size_t... kLane, class Mask>
inline Floats select(Floats a, Floats b, std::index_sequence<kLane...>, Mask) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, Mask::source(kLane)...);
#else
  return __builtin_shuffle(a, b, Ints{Mask::source(kLane)...});
#endif
}

template <int kBy>
struct Rotation {
  static constexpr int source(int lane) { return (lane + kBy) % kLanes; }
};

// Fold x with itself, rotated by half of the lanes, then by a quarter, and so on: one number in all lanes.
template <int kBy = kLanes / 2, class Fold>
Floats fold_lanes(Floats x, Fold fold) {
  x = fold(x, select(x, x, std::make_index_sequence<kLanes>{}, Rotation<kBy>{}));
  if constexpr (kBy > 1) return fold_lanes<kBy / 2>(x, fold);
  return x;
}

inline float max_lane(Floats x) {
  return fold_lanes(x, [](Floats a, Floats b) { return max(a, b); })[0];
}

inline float sum_lanes(Floats x) {
  return fold_lanes(x, [](Floats a, Floats b) { return a + b; })[0];
}

// In blocks of kBlock lanes: the first (or second) halves of `a`, each followed by the same half of `b`.
template <int kBlock, bool kSecond>
struct HalfBlocks {
  static constexpr int source(int lane) {
    const int half = kBlock / 2, offset = lane % kBlock, block = lane - offset;
    const int from = block + offset % half + (kSecond ? half : 0);
    return offset < half ? from : kLanes + from;
  }
};

template <int kBlock, bool kSecond>
inline Floats half_blocks(Floats a, Floats b) {
  return select(a, b, std::make_index_sequence<kLanes>{}, HalfBlocks<kBlock, kSecond>{});
}

// Lane i of the result is the sum of the lanes of rows[i]. Destroys rows.
template <int kBlock = kLanes>
inline Floats sum_each(Floats* rows) {
  if constexpr (kBlock == 1) {
    return rows[0];
  } else {
    for (int i = 0; i < kBlock / 2; ++i) {
      const Floats a = rows[i], b = rows[i + kBlock / 2];
      rows[i] = half_blocks<kBlock, false>(a, b) + half_blocks<kBlock, true>(a, b);
    }
    return sum_each<kBlock / 2>(rows);
  }
}

}  // namespace baton
