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
        return (Floats)_mm512_permutexvar_ps((__m512i)codes, (__m512)first);
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

  // Call `use` with what decodes the codes of a panel's row of pairs.
  template <class Use>
  void with_row(const Use& use) const {
    static_assert(kPackedVectors == 4);
    use([values = _mm512_load_si512(values_)](const uint8_t* codes, Pairs* columns) {
      const Halves32 words = (Halves32)_mm512_loadu_si512(codes);
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part)
        columns[part] = (Pairs)_mm512_permutexvar_epi16((__m512i)(words >> 4 * part), values);
    });
  }

 private:
  using Halves32 = uint16_t __attribute__((vector_size(64)));
  alignas(64) Bfloat16 values_[32];
};

// 32 codes, of which __builtin_convertvector would take one after another.
inline Pairs widen_codes(const int8_t* from) {
  const auto widen = [&](int at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at))));
  };
  return (Pairs)_mm512_cvtne2ps_pbh(widen(16), widen(0));
}

inline void decode_bytes(const int8_t* codes, int64_t n, Bfloat16* to) {
  for (int64_t i = 0; i < n; i += 32) {
    const Pairs pairs = widen_codes(codes + i);
    std::memcpy(to + i, &pairs, sizeof pairs);
  }
}

inline void decode_row(const int8_t* codes, Pairs* columns) {
  for (int i = 0; i < kPackedVectors; ++i) columns[i] = widen_codes(codes + 2 * kLanes * i);
}

// Bytes of E4m3's numbers as bfloat16, in each quarter of a vector: the lower and upper ones of subnormal numbers, by the
// sign and the last three bits, and the upper ones of all others, by the sign and the upper three bits of the exponent,
// of which bfloat16 keeps the last one in the lower byte, as the biases differ by an even number.
struct E4m3Bytes {
  alignas(64) uint8_t small_low[64], small_high[64], high[64];

  constexpr E4m3Bytes() : small_low(), small_high(), high() {
    for (int i = 0; i < 64; ++i) {
      const int sign = (i & 8) << 4;
      small_low[i] = uint8_t(kBfloat16Magnitudes<E4m3>[i % 8]);
      small_high[i] = uint8_t((kBfloat16Magnitudes<E4m3>[i % 8] >> 8) | sign);
      high[i] = uint8_t((Float8<E4m3>::kRebias / 2 + i % 8) | sign);
    }
  }
};

inline constexpr E4m3Bytes kE4m3Bytes;

// The numbers of 64 codes, none of them NaN; those of exponent 0 are rare among weights.
inline void widen_codes(const E4m3* from, Pairs* to) {
  using Bytes64 = uint8_t __attribute__((vector_size(64)));
  using Longs8 = uint64_t __attribute__((vector_size(64)));
  const __m512i order = (__m512i)Longs8{0, 4, 1, 5, 2, 6, 3, 7};   // of which unpacking leaves neighbours together
  const Bytes64 code = (Bytes64)_mm512_permutexvar_epi64(order, _mm512_loadu_si512(from));
  const auto look_up = [](const uint8_t* bytes, Bytes64 index) {
    return (Bytes64)_mm512_shuffle_epi8(_mm512_load_si512(bytes), (__m512i)index);
  };
  Bytes64 low = code << 4, high = look_up(kE4m3Bytes.high, code >> 4);
  if (__builtin_expect(_mm512_testn_epi8_mask((__m512i)code, _mm512_set1_epi8(0x78)) != 0, 0)) {
    const Bytes64 index = (code & 7) | (code >> 4 & 8);
    low = (code & 0x78) == 0 ? look_up(kE4m3Bytes.small_low, index) : low;
    high = (code & 0x78) == 0 ? look_up(kE4m3Bytes.small_high, index) : high;
  }
  to[0] = (Pairs)_mm512_unpacklo_epi8((__m512i)low, (__m512i)high);
  to[1] = (Pairs)_mm512_unpackhi_epi8((__m512i)low, (__m512i)high);
}

inline void decode_row(const E4m3* codes, Pairs* columns) {
  for (int i = 0; i < kPackedVectors; i += 2) widen_codes(codes + 2 * kLanes * i, columns + i);
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

inline void decode_row(const int8_t* codes, Floats* columns) {
  for (int i = 0; i < kPackedVectors; ++i) columns[i] = __builtin_convertvector(load_bytes(codes + i * kLanes), Floats);
}

inline void decode_row(const E4m3* codes, Floats* columns) {
  for (int i = 0; i < kPackedVectors; ++i) columns[i] = load_weights(codes + i * kLanes);
}

template <class Element>
void decode_floats(const E4m3* codes, int64_t n, Element* to) {
  if constexpr (std::is_same_v<Element, float>)
    for (int64_t i = 0; i < n; i += kLanes) store(to + i, load_weights(codes + i));
  else copy_row(codes, to, n);
}

// The bytes of `n` codes.
inline int64_t num_code_bytes(const QuantizedLinearArgs& args, int64_t n) { return args.element == kNibbles ? n / 2 : n; }

inline const uint8_t* codes_at(const QuantizedLinearArgs& args, int64_t at) {
  return static_cast<const uint8_t*>(args.codes) + num_code_bytes(args, at);
}

// Decode `n` codes from number `at` of the weight on, and prefetch those that come later.
template <class Element>
void decode(const QuantizedLinearArgs& args, const Nibbles<Element>& nibbles, int64_t at, int64_t n, Element* to) {
  const uint8_t* codes = codes_at(args, at);
  for (int64_t i = 0; i < num_code_bytes(args, n); i += 64) __builtin_prefetch(codes + kCodesAhead + i);
  if (args.element == kNibbles) nibbles.decode(codes, n, to);
  else if (args.element == kIntegers) decode_bytes(reinterpret_cast<const int8_t*>(codes), n, to);
  else if constexpr (!std::is_same_v<Element, int8_t>) decode_floats(reinterpret_cast<const E4m3*>(codes), n, to);
}

}  // namespace baton
