// AVX-512, AVX512-BF16, -VNNI and -VBMI in plain C++, in so far as the kernels use them, for CPUs that lack them: an
// emulated build (BATON_EMULATED) has the layouts and paths of the real one, and its products of bfloat16 have the same bits.
// Rounding is to nearest, and numbers below 2^-126 count as zeros, in and out, as in the instructions.
// Source: Intel SDM, volume 2 (VCVTNE2PS2BF16, VDPBF16PS); the order of sums was compared with hardware.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace baton::emulation {

#define BATON_INLINE inline __attribute__((always_inline))

using Floats16 = float __attribute__((vector_size(64)));
using Ints16 = int32_t __attribute__((vector_size(64)));
using Words16 = uint32_t __attribute__((vector_size(64)));
using Longs8 = uint64_t __attribute__((vector_size(64)));
using Halves32 = uint16_t __attribute__((vector_size(64)));
using Bytes64 = uint8_t __attribute__((vector_size(64)));
using SignedBytes64 = int8_t __attribute__((vector_size(64)));

BATON_INLINE Words16 flush(Words16 x) { return (x & 0x7f800000) != 0 ? x : x & 0x80000000; }

BATON_INLINE Floats16 add_products(Floats16 a, Floats16 b, Floats16 sum) {
  Floats16 result;
  for (int i = 0; i < 16; ++i) result[i] = __builtin_fmaf(a[i], b[i], sum[i]);
  return (Floats16)flush((Words16)result);
}

// The second numbers of pairs, and the first ones.
BATON_INLINE Floats16 odd_numbers(Words16 pairs) { return (Floats16)flush(pairs & 0xffff0000); }
BATON_INLINE Floats16 even_numbers(Words16 pairs) { return (Floats16)flush(pairs << 16); }

BATON_INLINE Words16 narrow(Words16 x) {
  const Words16 flushed = flush(x);
  const Words16 rounded = (flushed + 0x7fff + (flushed >> 16 & 1)) >> 16;
  return (x & 0x7fffffff) > 0x7f800000 ? (x >> 16 | 0x40) : rounded;
}

}  // namespace baton::emulation

#undef _mm512_dpbf16_ps
#undef _mm512_cvtne2ps_pbh
#undef _mm512_dpbusd_epi32
#undef _mm512_cmp_ps_mask
#undef _mm512_mul_epu32
#undef _mm512_loadu_si512
#undef _mm512_load_si512
#undef _mm512_storeu_si512
#undef _mm512_setzero_si512
#undef _mm512_set1_epi32
#undef _mm512_unpacklo_epi32
#undef _mm512_unpackhi_epi32
#undef _mm512_unpacklo_epi64
#undef _mm512_unpackhi_epi64
#undef _mm512_unpacklo_epi8
#undef _mm512_unpackhi_epi8
#undef _mm512_shuffle_i32x4
#undef _mm512_permutexvar_ps
#undef _mm512_permutexvar_epi16
#undef _mm512_permutex2var_epi16
#undef _mm512_permutex2var_epi8
#undef _mm512_permutexvar_epi64
#undef _mm512_shuffle_epi8
#undef _mm512_testn_epi8_mask
#undef _mm512_set1_epi8
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_reduce_ps
#undef _mm512_scalef_ps
#define _mm512_dpbf16_ps baton::emulation::dot
#define _mm512_cvtne2ps_pbh baton::emulation::narrow_two
#define _mm512_dpbusd_epi32 baton::emulation::dot_codes
#define _mm512_cmp_ps_mask(a, b, predicate) baton::emulation::compare<predicate>(a, b)
#define _mm512_mul_epu32 baton::emulation::multiply_words
#define _mm512_loadu_si512 baton::emulation::load_vector
#define _mm512_load_si512 baton::emulation::load_vector
#define _mm512_storeu_si512 baton::emulation::store_vector
#define _mm512_setzero_si512() (__m512i{})
#define _mm512_set1_epi32 baton::emulation::splat_word
#define _mm512_unpacklo_epi32 baton::emulation::unpack_words<0>
#define _mm512_unpackhi_epi32 baton::emulation::unpack_words<2>
#define _mm512_unpacklo_epi64 baton::emulation::unpack_longs<0>
#define _mm512_unpackhi_epi64 baton::emulation::unpack_longs<1>
#define _mm512_unpacklo_epi8 baton::emulation::unpack_bytes<0>
#define _mm512_unpackhi_epi8 baton::emulation::unpack_bytes<8>
#define _mm512_shuffle_i32x4(a, b, order) baton::emulation::shuffle_quarters(a, b, order)
#define _mm512_permutexvar_ps baton::emulation::permute_floats
#define _mm512_permutexvar_epi16 baton::emulation::permute_halves
#define _mm512_permutex2var_epi16 baton::emulation::permute_two
#define _mm512_permutex2var_epi8 baton::emulation::permute_two_of_bytes
#define _mm512_permutexvar_epi64 baton::emulation::permute_longs
#define _mm512_shuffle_epi8 baton::emulation::shuffle_bytes
#define _mm512_testn_epi8_mask baton::emulation::test_none
#define _mm512_set1_epi8 baton::emulation::splat_byte
#define _mm512_cvtepi8_epi32 baton::emulation::widen_bytes
#define _mm512_cvtepi32_ps baton::emulation::to_floats
#define _mm512_reduce_ps(x, control) baton::emulation::fractions<control>(x)
#define _mm512_scalef_ps baton::emulation::scale

namespace baton::emulation {

// The second product of each pair is added first, each in one rounding.
BATON_INLINE __m512 dot(__m512 sum, __m512bh a, __m512bh b) {
  const Words16 x = (Words16)a, y = (Words16)b;
  const Floats16 flushed = (Floats16)flush((Words16)sum);
  return (__m512)add_products(even_numbers(x), even_numbers(y), add_products(odd_numbers(x), odd_numbers(y), flushed));
}

BATON_INLINE __m512bh narrow_two(__m512 high, __m512 low) {
  const Words16 upper = narrow((Words16)high), lower = narrow((Words16)low);
  Halves32 halves;
  for (int i = 0; i < 16; ++i) halves[i] = uint16_t(lower[i]), halves[16 + i] = uint16_t(upper[i]);
  return (__m512bh)halves;
}

BATON_INLINE __m512i dot_codes(__m512i sum, __m512i codes, __m512i weights) {
  const Bytes64 x = (Bytes64)codes;
  const SignedBytes64 y = (SignedBytes64)weights;
  Ints16 total = (Ints16)sum;
  for (int i = 0; i < 64; ++i) total[i / 4] += int32_t{x[i]} * int32_t{y[i]};
  return (__m512i)total;
}

template <int kPredicate>
BATON_INLINE uint32_t compare(__m512 a, __m512 b) {
  static_assert(kPredicate == _CMP_GE_OQ, "the only one that is emulated");
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= uint32_t{a[i] >= b[i]} << i;
  return bits;
}

BATON_INLINE __m512i multiply_words(__m512i a, __m512i b) {
  return (__m512i)(((Longs8)a & 0xffffffff) * ((Longs8)b & 0xffffffff));
}

BATON_INLINE __m512i load_vector(const void* from) {
  __m512i x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

BATON_INLINE void store_vector(void* to, __m512i x) { std::memcpy(to, &x, sizeof x); }

BATON_INLINE __m512i splat_word(int32_t x) { return (__m512i)(x - Ints16{}); }

// In each quarter, two words from `kFrom` on: of a and of b in turns.
template <int kFrom>
BATON_INLINE __m512i unpack_words(__m512i a, __m512i b) {
  const Words16 x = (Words16)a, y = (Words16)b;
  Words16 result;
  for (int i = 0; i < 16; ++i) {
    const int from = i / 4 * 4 + kFrom + i % 4 / 2;
    result[i] = i % 2 ? y[from] : x[from];
  }
  return (__m512i)result;
}

template <int kFrom>
BATON_INLINE __m512i unpack_longs(__m512i a, __m512i b) {
  const Longs8 x = (Longs8)a, y = (Longs8)b;
  Longs8 result;
  for (int i = 0; i < 8; ++i) result[i] = i % 2 ? y[i / 2 * 2 + kFrom] : x[i / 2 * 2 + kFrom];
  return (__m512i)result;
}

// In each quarter, eight bytes from `kFrom` on: of a and of b in turns.
template <int kFrom>
BATON_INLINE __m512i unpack_bytes(__m512i a, __m512i b) {
  const Bytes64 x = (Bytes64)a, y = (Bytes64)b;
  Bytes64 result;
  for (int i = 0; i < 64; ++i) {
    const int from = i / 16 * 16 + kFrom + i % 16 / 2;
    result[i] = i % 2 ? y[from] : x[from];
  }
  return (__m512i)result;
}

// Two quarters of a, then two of b, each by two bits of `order`.
BATON_INLINE __m512i shuffle_quarters(__m512i a, __m512i b, int order) {
  const Words16 x = (Words16)a, y = (Words16)b;
  Words16 result;
  for (int i = 0; i < 16; ++i) {
    const int from = (order >> i / 4 * 2 & 3) * 4 + i % 4;
    result[i] = i < 8 ? x[from] : y[from];
  }
  return (__m512i)result;
}

BATON_INLINE __m512 permute_floats(__m512i index, __m512 values) {
  const Ints16 at = (Ints16)index;
  Floats16 result;
  for (int i = 0; i < 16; ++i) result[i] = values[at[i] & 15];
  return (__m512)result;
}

BATON_INLINE __m512i permute_halves(__m512i order, __m512i a) {
  const Halves32 from = (Halves32)order, x = (Halves32)a;
  Halves32 result;
  for (int i = 0; i < 32; ++i) result[i] = x[from[i] & 31];
  return (__m512i)result;
}

BATON_INLINE __m512i permute_two(__m512i a, __m512i order, __m512i b) {
  const Halves32 from = (Halves32)order, x = (Halves32)a, y = (Halves32)b;
  Halves32 result;
  for (int i = 0; i < 32; ++i) result[i] = from[i] & 32 ? y[from[i] & 31] : x[from[i] & 31];
  return (__m512i)result;
}

BATON_INLINE __m512i permute_two_of_bytes(__m512i a, __m512i order, __m512i b) {
  const Bytes64 from = (Bytes64)order, x = (Bytes64)a, y = (Bytes64)b;
  Bytes64 result;
  for (int i = 0; i < 64; ++i) result[i] = from[i] & 64 ? y[from[i] & 63] : x[from[i] & 63];
  return (__m512i)result;
}

// In each quarter.
BATON_INLINE __m512i shuffle_bytes(__m512i a, __m512i order) {
  const Bytes64 from = (Bytes64)order, x = (Bytes64)a;
  Bytes64 result;
  for (int i = 0; i < 64; ++i) result[i] = from[i] & 128 ? 0 : x[i / 16 * 16 + from[i] % 16];
  return (__m512i)result;
}

BATON_INLINE uint64_t test_none(__m512i a, __m512i b) {
  const Bytes64 both = (Bytes64)a & (Bytes64)b;
  uint64_t bits = 0;
  for (int i = 0; i < 64; ++i) bits |= uint64_t{!both[i]} << i;
  return bits;
}

BATON_INLINE __m512i splat_byte(char x) { return (__m512i)(uint8_t(x) - Bytes64{}); }

BATON_INLINE __m512i permute_longs(__m512i order, __m512i a) {
  const Longs8 from = (Longs8)order, x = (Longs8)a;
  Longs8 result;
  for (int i = 0; i < 8; ++i) result[i] = x[from[i] & 7];
  return (__m512i)result;
}

BATON_INLINE __m512i widen_bytes(__m128i bytes) {
  int8_t codes[16];
  std::memcpy(codes, &bytes, sizeof codes);
  Ints16 result;
  for (int i = 0; i < 16; ++i) result[i] = codes[i];
  return (__m512i)result;
}

// The distance to the largest integer that is not above a number, rounded down; 0 of infinities.
template <int kControl>
BATON_INLINE __m512 fractions(__m512 x) {
  static_assert(kControl == _MM_FROUND_TO_NEG_INF, "the only one that is emulated");
  Floats16 result;
  for (int i = 0; i < 16; ++i) {
    const double exact = __builtin_isinf(x[i]) ? 0.0 : double{x[i]} - __builtin_floorf(x[i]);
    result[i] = float(exact) > exact ? __builtin_nextafterf(float(exact), 0.0f) : float(exact);
  }
  return (__m512)result;
}

// x times two to the power of the largest integer that is not above `power`.
BATON_INLINE __m512 scale(__m512 x, __m512 power) {
  Floats16 result;
  for (int i = 0; i < 16; ++i) {
    const float whole = __builtin_floorf(power[i]), bounded = whole < -300 ? -300 : whole > 300 ? 300 : whole;
    result[i] = power[i] != power[i] ? power[i] : __builtin_ldexpf(x[i], int(bounded));
  }
  return (__m512)result;
}

BATON_INLINE __m512 to_floats(__m512i x) { return (__m512)__builtin_convertvector((Ints16)x, Floats16); }

}  // namespace baton::emulation
