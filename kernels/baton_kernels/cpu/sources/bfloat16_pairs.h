// Operands of an inner product: one float, or two neighbours of bfloat16, which AVX512-BF16 multiplies and adds in
// one instruction, or four codes, which AMX does.
#pragma once

#include <cstring>

#include "vectors.h"

namespace baton {

struct Pair {
  Bfloat16 first, second;
};

struct Quad {
  int8_t codes[4];
};

// The element of a row of operands, and the elements per operand.
template <class Number>
struct Packing {
  using Element = Number;
  static constexpr int kDepth = 1;
};

template <>
struct Packing<Pair> {
  using Element = Bfloat16;
  static constexpr int kDepth = 2;
};

template <>
struct Packing<Quad> {
  using Element = int8_t;
  static constexpr int kDepth = 4;
};

inline Floats splat_number(const float* from) { return splat(*from); }

inline Floats load_numbers(const float* from) { return load(from); }

inline Floats load_numbers(const Bfloat16* from) { return load(from); }

// sum + a * b
inline Floats add_product(Floats sum, Floats a, Floats b) { return sum + a * b; }

#if BATON_BFLOAT16_DOT
using Pairs = __m512bh;

inline Pairs splat_number(const Pair* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return (Pairs)_mm512_set1_epi32(bits);
}

inline Pairs load_numbers(const Pair* from) { return (Pairs)_mm512_loadu_si512(from); }

inline Floats add_product(Floats sum, Pairs a, Pairs b) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, a, b);
}
#endif

}  // namespace baton
