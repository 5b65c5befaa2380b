// Gumbel noise as a pure function of (seed, position, token id): the same as in reference/gumbel_noise.py.
// Source: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
#pragma once

#include <cmath>

#include "vectors.h"

namespace baton {

constexpr int kBlockTokens = 4;          // tokens that share one evaluation of the generator
constexpr int kChains = 2;               // chains of dependent rounds, side by side
constexpr int kNoiseVectors = 2 * kChains;
constexpr int kNoiseTokens = kNoiseVectors * kLanes;   // tokens whose words are computed at a time
constexpr int kNumRounds = 10;

// Words in the lower halves of lanes; the upper halves mean nothing.
using Wides = uint64_t __attribute__((vector_size(4 * kLanes)));

inline Wides multiply_words(Wides a, Wides b) {
#if BATON_LANES == 16
  return (Wides)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif BATON_LANES == 8
  return (Wides)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
  return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

// Pairs of lanes, alternately from `a` and `b`, from their first or second halves.
template <bool kSecond>
struct InterleavedPairs {
  static constexpr int source(int lane) {
    const int pair = lane / 2, from = pair / 2 * 2 + lane % 2 + (kSecond ? kLanes / 2 : 0);
    return pair % 2 ? kLanes + from : from;
  }
};

template <bool kSecond>
inline Words interleave_pairs(Wides a, Wides b) {
  constexpr auto kEach = std::make_index_sequence<kLanes>{};
  return (Words)select((Floats)a, (Floats)b, kEach, InterleavedPairs<kSecond>{});
}

// The Gumbel noise of one row's tokens, from Philox.
class GumbelNoise {
 public:
  GumbelNoise(uint64_t seed, uint64_t position) : position_(position) {
    for (int lane = 0; lane < kLanes / 2; ++lane) blocks_[lane] = lane;
    uint32_t first = seed, second = seed >> 32;
    for (int round = 0; round < kNumRounds; ++round, first += 0x9E3779B9u, second += 0xBB67AE85u) {
      first_keys_[round] = first;
      second_keys_[round] = second;
    }
  }

  // The random words of tokens [token, token + kNoiseTokens), `token` being a multiple of kBlockTokens.
  std::array<Words, kNoiseVectors> words(int64_t token) const {
    Wides c0[kChains], c1[kChains] = {}, c2[kChains], c3[kChains];
    for (int i = 0; i < kChains; ++i) {
      c0[i] = blocks_ + uint64_t(token / kBlockTokens + i * kLanes / 2);
      c2[i] = Wides{} + (position_ & 0xffffffff);
      c3[i] = Wides{} + (position_ >> 32);
    }
#pragma GCC unroll 10
    for (int round = 0; round < kNumRounds; ++round) {
#pragma GCC unroll 2
      for (int i = 0; i < kChains; ++i) {
        const Wides first = multiply_words(c0[i], Wides{} + 0xD2511F53u);
        const Wides second = multiply_words(c2[i], Wides{} + 0xCD9E8D57u);
        c0[i] = (second >> 32) ^ c1[i] ^ first_keys_[round];
        c2[i] = (first >> 32) ^ c3[i] ^ second_keys_[round];
        c1[i] = second;
        c3[i] = first;
      }
    }
    std::array<Words, kNoiseVectors> words;
    for (int i = 0; i < kChains; ++i) {
      const Wides even = (c0[i] & 0xffffffff) | c1[i] << 32, odd = (c2[i] & 0xffffffff) | c3[i] << 32;
      words[2 * i] = interleave_pairs<false>(even, odd);
      words[2 * i + 1] = interleave_pairs<true>(even, odd);
    }
    return words;
  }

  double of(int64_t token) const {
    const int64_t offset = token % kBlockTokens;
    return of_word(words(token - offset)[0][offset]);
  }

  static double of_word(uint32_t word) { return -std::log(-std::log((word + 0.5) * 0x1p-32)); }

 private:
  Wides blocks_;
  uint64_t position_, first_keys_[kNumRounds], second_keys_[kNumRounds];
};

}  // namespace baton
