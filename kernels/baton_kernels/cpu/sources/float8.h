// Numbers of 8 bits in a KV cache: e4m3, which has no infinities, and e5m2. Written numbers are rounded to nearest, ties to
// even, and saturate; NaN stays NaN. Each number is also one of bfloat16.
// Source: Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "vectors.h"

namespace baton {

struct E4m3 {
  uint8_t code;
  static constexpr int kMantissaBits = 3, kBias = 7;
  static constexpr uint32_t kLargest = 0x43e00000;   // 448, as the bits of a float
  static constexpr int kLeastSpecial = 0x7f;         // codes from here on are infinite or NaN
};

struct E5m2 {
  uint8_t code;
  static constexpr int kMantissaBits = 2, kBias = 15;
  static constexpr uint32_t kLargest = 0x47600000;   // 57344
  static constexpr int kLeastSpecial = 0x7c;
};

template <class Stored>
constexpr bool kIsFloat8 = std::is_same_v<Stored, E4m3> || std::is_same_v<Stored, E5m2>;

using Codes = uint8_t __attribute__((vector_size(kLanes)));

// What the formats have in common, for both directions.
template <class Format>
struct Float8 {
  static constexpr int kDropped = 23 - Format::kMantissaBits;   // bits of a float's mantissa
  static constexpr int32_t kRebias = 127 - Format::kBias;
  static constexpr int32_t kLeastNormal = (kRebias + 1) << 23;
  // Next to this power of two a float counts in the steps of the format's subnormal numbers.
  static constexpr int32_t kSubnormalBase = (kRebias + 1 + kDropped) << 23;

  static float value_of(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};

template <class Format, class = std::enable_if_t<kIsFloat8<Format>>>
inline Floats load(const Format* from) {
  using F = Float8<Format>;
  const Ints code = load_bytes(reinterpret_cast<const uint8_t*>(from)), magnitude = code & 0x7f;
  const Ints bits = (magnitude << F::kDropped) + (F::kRebias << 23);
  const Floats normal = (Floats)bits;
  const Floats finite = magnitude < (1 << Format::kMantissaBits)
                            ? normal + normal - F::value_of(F::kLeastNormal) : normal;
  const Ints value = magnitude >= Format::kLeastSpecial ? bits | 0x7f800000 : (Ints)finite;
  return (Floats)(value | (code & 0x80) << 24);
}

template <class Format, class = std::enable_if_t<kIsFloat8<Format>>>
inline void store(Format* to, Floats x) {
  using F = Float8<Format>;
  const Ints bits = (Ints)x, magnitude = bits & 0x7fffffff;
  const Ints bounded = magnitude < int32_t(Format::kLargest) ? magnitude : int32_t(Format::kLargest) - Ints{};
  const Ints rounded = bounded + ((1 << (F::kDropped - 1)) - 1) + (bounded >> F::kDropped & 1);
  const Ints normal = (rounded >> F::kDropped) - (F::kRebias << Format::kMantissaBits);
  const Floats small = (Floats)(bounded < F::kLeastNormal ? bounded : Ints{}) + F::value_of(F::kSubnormalBase);
  const Ints finite = bounded < F::kLeastNormal ? (Ints)small - F::kSubnormalBase : normal;
  const Ints code = (magnitude > 0x7f800000 ? 0x7f - Ints{} : finite) | (bits >> 24 & 0x80);
  const Codes codes = __builtin_convertvector(code, Codes);
  std::memcpy(to, &codes, sizeof codes);
}

// The magnitudes as bfloat16.
template <class Format>
constexpr std::array<Bfloat16, 128> bfloat16_magnitudes() {
  std::array<Bfloat16, 128> values{};
  constexpr int kOne = 1 << Format::kMantissaBits;
  for (int code = 0; code < 128; ++code) {
    int exponent = code / kOne + 127 - Format::kBias, mantissa = code % kOne;
    if (code >= Format::kLeastSpecial) exponent = 255;
    else if (code < kOne) {
      if (!code) continue;
      ++exponent;
      while (mantissa < kOne) mantissa *= 2, --exponent;
      mantissa -= kOne;
    }
    values[code] = Bfloat16(exponent << 7 | mantissa << (7 - Format::kMantissaBits));
  }
  return values;
}

template <class Format>
alignas(64) inline constexpr std::array<Bfloat16, 128> kBfloat16Magnitudes = bfloat16_magnitudes<Format>();

#if BATON_BFLOAT16_DOT
#if BATON_EMULATED
#define BATON_VBMI
inline bool has_vbmi() { return true; }
#else
#define BATON_VBMI __attribute__((target("avx512f,avx512bw,avx512vbmi")))
// AVX512-VBMI looks up 64 bytes at a time in a table of 128.
inline bool has_vbmi() {
  static const bool has = __builtin_cpu_supports("avx512vbmi");
  return has;
}
#endif

// The lower bytes of the magnitudes, then the upper ones.
template <class Format>
constexpr std::array<uint8_t, 256> magnitude_bytes() {
  std::array<uint8_t, 256> bytes{};
  for (int code = 0; code < 128; ++code) {
    bytes[code] = uint8_t(kBfloat16Magnitudes<Format>[code]);
    bytes[128 + code] = uint8_t(kBfloat16Magnitudes<Format>[code] >> 8);
  }
  return bytes;
}
template <class Format>
alignas(64) inline constexpr std::array<uint8_t, 256> kMagnitudeBytes = magnitude_bytes<Format>();

// Look up the numbers of codes, in whole vectors of 64, by the bytes of their magnitudes. Return how many.
BATON_VBMI inline int64_t look_up(const uint8_t* bytes, const void* codes, Bfloat16* to, int64_t n) {
  using Bytes64 = uint8_t __attribute__((vector_size(64)));
  using Longs8 = uint64_t __attribute__((vector_size(64)));
  const __m512i order = (__m512i)Longs8{0, 4, 1, 5, 2, 6, 3, 7};   // of which unpacking leaves neighbours together
  const __m512i low0 = _mm512_load_si512(bytes), low1 = _mm512_load_si512(bytes + 64);
  const __m512i high0 = _mm512_load_si512(bytes + 128), high1 = _mm512_load_si512(bytes + 192);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i code = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(static_cast<const uint8_t*>(codes) + i));
    const __m512i low = _mm512_permutex2var_epi8(low0, code, low1);
    const __m512i high = (__m512i)((Bytes64)_mm512_permutex2var_epi8(high0, code, high1) | ((Bytes64)code & 0x80));
    _mm512_storeu_si512(to + i, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(to + i + 32, _mm512_unpackhi_epi8(low, high));
  }
  return i;
}
#endif

inline Bfloat16 with_sign(Bfloat16 magnitude, uint8_t code) { return Bfloat16(magnitude | (code & 0x80) << 8); }

template <class Format, class = std::enable_if_t<kIsFloat8<Format>>>
inline void copy_row(const Format* from, Bfloat16* to, int64_t n) {
  const auto& magnitudes = kBfloat16Magnitudes<Format>;
  int64_t i = 0;
#if BATON_BFLOAT16_DOT
  if (has_vbmi()) i = look_up(kMagnitudeBytes<Format>.data(), from, to, n);
  // A normal number has its bits moved and the bias of its exponent changed; others are looked up.
  using F = Float8<Format>;
  using Codes32 = uint8_t __attribute__((vector_size(32)));
  using Halves32 = uint16_t __attribute__((vector_size(64)));
  constexpr int kShift = 7 - Format::kMantissaBits;
  constexpr uint16_t kSmall = 1 << Format::kMantissaBits, kSpecial = Format::kLeastSpecial;
  const __m512i small = _mm512_load_si512(magnitudes.data());
  for (; i + 32 <= n; i += 32) {
    Codes32 codes;
    std::memcpy(&codes, from + i, sizeof codes);
    const Halves32 code = __builtin_convertvector(codes, Halves32), bits = code & 0x7f;
    Halves32 magnitude = (bits << kShift) + uint16_t(F::kRebias << 7);
    magnitude = bits < kSmall ? (Halves32)_mm512_permutexvar_epi16((__m512i)bits, small) : magnitude;
    magnitude = bits >= kSpecial ? magnitude | uint16_t{0x7f80} : magnitude;
    _mm512_storeu_si512(to + i, (__m512i)(magnitude | (code & 0x80) << 8));
  }
#endif
  for (; i < n; ++i) to[i] = with_sign(magnitudes[from[i].code & 0x7f], from[i].code);
}

template <class Format, class = std::enable_if_t<kIsFloat8<Format>>>
inline void copy_row(const Format* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = widen(with_sign(kBfloat16Magnitudes<Format>[from[i].code & 0x7f], from[i].code));
}

}  // namespace baton
