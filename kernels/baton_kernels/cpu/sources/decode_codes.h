// The values of the codes of quantized weights, in the layout of packed_linear.h.
#pragma once

#include <algorithm>
#include <type_traits>

#include "float8.h"
#include "packed_linear.h"
#include "structs.h"

namespace baton {

constexpr int64_t kCodesAhead = 1 << 10;   // distance of the prefetch of codes, in bytes
constexpr int kNibbleBlock = kPackedPanelWidth < 64 ? kPackedPanelWidth : 64;   // codes of 4 bits that lie together

// Decodes 4-bit codes: the first half of a block of them lies in the lower bits of its bytes, the second in the upper.
// Those of pairs lie in words instead, each of four codes that are 32 apart.
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
    for (int64_t i = 0; i < n; i += 128, codes += 64) {
      const Halves32 words = (Halves32)_mm512_loadu_si512(codes);
      for (int part = 0; part < 4; ++part)
        _mm512_storeu_si512(to + i + 32 * part, _mm512_permutexvar_epi16((__m512i)(words >> 4 * part), values));
    }
  }

 private:
  using Halves32 = uint16_t __attribute__((vector_size(64)));
  alignas(64) Bfloat16 values_[32];
};

inline void decode_bytes(const int8_t* codes, int64_t n, Bfloat16* to) {
  const auto widen_codes = [&](int64_t at) {   // __builtin_convertvector takes them one by one
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at))));
  };
  for (int64_t i = 0; i < n; i += 32) {
    const __m512bh both = _mm512_cvtne2ps_pbh(widen_codes(i + 16), widen_codes(i));
    std::memcpy(to + i, &both, sizeof both);
  }
}
#endif

#if BATON_TILES
// The first 64 of each 128 codes lie in the lower bits. Values are integers, one after another.
template <>
class Nibbles<int8_t> {
 public:
  explicit Nibbles(const float* table) : least_(int8_t(table[0])) {}

  void decode(const uint8_t* codes, int64_t n, int8_t* to) const {
    for (int64_t i = 0; i < n; i += 128, codes += 64) {
      const Bytes64 both = (Bytes64)_mm512_loadu_si512(codes);
      _mm512_storeu_si512(to + i, (__m512i)((both & 15) + least_));
      _mm512_storeu_si512(to + i + 64, (__m512i)((both >> 4) + least_));
    }
  }

 private:
  using Bytes64 = uint8_t __attribute__((vector_size(64)));
  uint8_t least_;
};

inline void decode_bytes(const int8_t* codes, int64_t n, int8_t* to) { std::memcpy(to, codes, n); }
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

// Decode `n` codes from number `at` of the weight on, and prefetch those that come later.
template <class Element>
void decode(const QuantizedLinearArgs& args, const Nibbles<Element>& nibbles, int64_t at, int64_t n, Element* to) {
  const auto* codes = static_cast<const uint8_t*>(args.codes);
  const int64_t size = args.element == kNibbles ? n / 2 : n;
  const uint8_t* next = codes + (args.element == kNibbles ? at / 2 : at) + kCodesAhead;
  for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(next + i);
  if (args.element == kNibbles) nibbles.decode(codes + at / 2, n, to);
  else if (args.element == kIntegers) decode_bytes(reinterpret_cast<const int8_t*>(codes) + at, n, to);
  else if constexpr (!std::is_same_v<Element, int8_t>) copy_row(reinterpret_cast<const E4m3*>(codes) + at, to, n);
}

}  // namespace baton
