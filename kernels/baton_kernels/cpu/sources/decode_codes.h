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

// What the values of 4-bit codes have in common, which saves looking them up.
enum class Table {
  kCodes,      // they are the codes themselves
  kLinear,     // they are whole numbers in order
  kMirrored,   // the second half is the first one with another sign
  kAny,
};

template <>
class Nibbles<float> {
 public:
  explicit Nibbles(const float* table) : table_(table) {
    bool is_linear = true, is_mirrored = true;
    for (int code = 0; code < 16; ++code) is_linear &= table[code] == table[0] + float(code);
    for (int code = 0; code < 8; ++code) is_mirrored &= table[8 + code] == -table[code];
    if (is_linear) kind_ = table[0] == 0 ? Table::kCodes : Table::kLinear;
    else kind_ = is_mirrored ? Table::kMirrored : Table::kAny;
  }

  void decode(const uint8_t* codes, int64_t n, float* to) const {
#if BATON_LANES >= 8
    with_row([&](const auto& decode_row) {
      for (int64_t i = 0; i < n; i += kNibbleBlock, codes += kHalf) {
        Floats columns[kPackedVectors];
        decode_row(codes, columns);
        for (int part = 0; part < kPackedVectors; ++part) store(to + i + part * kLanes, columns[part]);
      }
    });
#else
    for (int64_t i = 0; i < n; i += kNibbleBlock, codes += kHalf)
      for (int part = 0; part < kHalf; ++part) {
        to[i + part] = table_[codes[part] & 15];
        to[i + kHalf + part] = table_[codes[part] >> 4];
      }
#endif
  }

#if BATON_LANES >= 8
  // Call `use` with what decodes the codes of a panel's row.
  template <class Use>
  void with_row(const Use& use) const {
    constexpr bool kHoldsTable = kLanes == 16;   // one vector does, so that each look-up is one instruction
    if (kHoldsTable) use(Row<Table::kAny>{load(table_), {}});
    else if (kind_ == Table::kAny) use(Row<Table::kAny>{load(table_), load(table_ + kLanes)});
    else if (kind_ == Table::kCodes) use(Row<Table::kCodes>{});
    else if (kind_ == Table::kLinear) use(Row<Table::kLinear>{splat(table_[0]), {}});
    else use(Row<Table::kMirrored>{load(table_), {}});
  }
#endif

 private:
  static constexpr int kHalf = kNibbleBlock / 2;

#if BATON_LANES >= 8
  template <Table kKind>
  struct Row {
    Floats first, second;   // of the table; of a linear one its least value

    void operator()(const uint8_t* codes, Floats* columns) const {
      static_assert(kNibbleBlock == kPackedPanelWidth);
      for (int part = 0; part < kPackedVectors / 2; ++part) {
        const Ints bytes = load_bytes(codes + part * kLanes);
        columns[part] = value(bytes & 15);
        columns[kPackedVectors / 2 + part] = value(bytes >> 4);
      }
    }

    Floats value(Ints codes) const {
      if constexpr (kKind == Table::kCodes) {
        return __builtin_convertvector(codes, Floats);
      } else if constexpr (kKind == Table::kLinear) {
        return __builtin_convertvector(codes, Floats) + first;
      } else {
#if BATON_LANES == 16
        return __builtin_shuffle(first, codes);
#else
        const Ints upper = codes << 28;   // its sign tells the halves apart
        const Floats looked_up = permute(first, codes);
        if constexpr (kKind == Table::kMirrored) return (Floats)((Ints)looked_up ^ (upper & INT32_MIN));
        return upper < 0 ? permute(second, codes) : looked_up;
#endif
      }
    }

#if BATON_LANES == 8
    // The lower three bits of a code count.
    static Floats permute(Floats values, Ints codes) {
      return (Floats)_mm256_permutevar8x32_ps((__m256)values, (__m256i)codes);
    }
#endif
  };
#endif

  const float* table_;
  Table kind_;
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

inline void decode_bytes(const int8_t* codes, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, __builtin_convertvector(load_bytes(codes + i), Floats));
  for (; i < n; ++i) to[i] = float(codes[i]);
}

// The values of a vector of 8-bit floats, none of them NaN. Their bits are those of floats that are 2^120 times smaller, so
// that one multiplication gives all of them, subnormal ones, which are rare among weights, included.
inline Floats load_weights(const E4m3* from) {
  constexpr int32_t kDropped = Float8<E4m3>::kDropped, kMagnitude = 0x7f << kDropped;
  const Ints bits = load_bytes(reinterpret_cast<const int8_t*>(from)) << kDropped & (INT32_MIN | kMagnitude);
  return (Floats)bits * 0x1p120f;
}

template <class Element>
void decode_floats(const E4m3* codes, int64_t n, Element* to) {
  if constexpr (std::is_same_v<Element, float>)
    for (int64_t i = 0; i < n; i += kLanes) store(to + i, load_weights(codes + i));
  else copy_row(codes, to, n);
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
  else if constexpr (!std::is_same_v<Element, int8_t>) decode_floats(reinterpret_cast<const E4m3*>(codes) + at, n, to);
}

}  // namespace baton
