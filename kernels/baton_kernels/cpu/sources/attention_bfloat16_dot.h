// Attention over one split of a cache of at most 16 bits with AVX512-BF16: products are of pairs of bfloat16, which are
// paired once for up to kPairHeads query heads. Weights are rounded to bfloat16, sums are float32.
#pragma once

#include <algorithm>
#include <array>
#include <tuple>

#include "bfloat16_pairs.h"
#include "softmax.h"
#include "kv_tiles.h"

namespace baton {

constexpr int kPairTokens = 16;   // in a tile: one vector of scores
constexpr int kPairDims = 32;     // dimensions in a vector of a row
constexpr int kPairHeads = 8;     // query heads that share one pass over a tile

// Scratch memory of one thread. A tile or a query is zeros behind head_dim.
struct PairScratch {
  int64_t width;      // head_dim in whole vectors
  Bfloat16* tile;     // [kPairTokens, width]
  Pair* keys;         // [width / 2, kPairTokens]
  Bfloat16* q;        // [group_size, width]
  float* scores;      // [group_size, kSplitTokens]
  Pair* weights;      // [group_size, kSplitTokens / 2]

  static int64_t size_of(const DecodeAttentionArgs& args) {
    return rows_size(args) + args.group_size * (kSplitTokens + kSplitTokens / 2);
  }
  PairScratch(const DecodeAttentionArgs& args, float* place)
      : width(round_up(args.layer.head_dim, kPairDims)), tile(reinterpret_cast<Bfloat16*>(place)),
        keys(reinterpret_cast<Pair*>(tile + kPairTokens * width)),
        q(reinterpret_cast<Bfloat16*>(keys + kPairTokens * width / 2)), scores(place + rows_size(args)),
        weights(reinterpret_cast<Pair*>(scores + args.group_size * kSplitTokens)) {
    std::fill(place, scores, 0.0f);
  }

 private:
  static int64_t rows_size(const DecodeAttentionArgs& args) {
    return (2 * kPairTokens + args.group_size) * round_up(args.layer.head_dim, kPairDims) / 2;
  }
};

// Transpose 16 rows of 16 numbers of four bytes to rows that begin `stride` numbers apart.
inline void transpose(const __m512i* rows, Pair* to, int64_t stride = 16) {
  __m512i twos[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    twos[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    twos[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(twos[i + j], twos[i + j + 2]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(twos[i + j], twos[i + j + 2]);
    }
  constexpr int kEven = 0x88, kOdd = 0xdd;   // lanes 0 and 2, and 1 and 3, of both
  for (int i = 0; i < 4; ++i) {
    const __m512i even = _mm512_shuffle_i32x4(fours[i], fours[4 + i], kEven);
    const __m512i odd = _mm512_shuffle_i32x4(fours[i], fours[4 + i], kOdd);
    const __m512i even_below = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], kEven);
    const __m512i odd_below = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], kOdd);
    _mm512_storeu_si512(to + i * stride, _mm512_shuffle_i32x4(even, even_below, kEven));
    _mm512_storeu_si512(to + (4 + i) * stride, _mm512_shuffle_i32x4(odd, odd_below, kEven));
    _mm512_storeu_si512(to + (8 + i) * stride, _mm512_shuffle_i32x4(even, even_below, kOdd));
    _mm512_storeu_si512(to + (12 + i) * stride, _mm512_shuffle_i32x4(odd, odd_below, kOdd));
  }
}

// Pairs of a tile's keys, with the same pair of all keys side by side.
inline void transpose_keys(Tile<Bfloat16> keys, int64_t width, Pair* to) {
  for (int64_t d = 0; d < width; d += kPairDims) {
    __m512i rows[kPairTokens];
    for (int key = 0; key < kPairTokens; ++key)
      rows[key] = _mm512_loadu_si512(keys.rows + key * keys.stride + d);
    transpose(rows, to + d / 2 * kPairTokens);
  }
}

// Scores of a tile's keys for kHeads heads.
template <int kHeads>
void score_pairs(const Pair* keys, const Bfloat16* q, int64_t width, Prefetch prefetch, float* scores) {
  Floats sums[kHeads] = {};
  for (int64_t pair = 0; pair < width / 2; ++pair) {
    prefetch.issue<kSecondCache>();
    const Pairs key = load_numbers(keys + pair * kPairTokens);
    for (int head = 0; head < kHeads; ++head)
      sums[head] = add_product(
          sums[head], splat_number(reinterpret_cast<const Pair*>(q + head * width) + pair), key);
  }
  for (int head = 0; head < kHeads; ++head) store(scores + head * kSplitTokens, sums[head]);
}

// The numbers of two rows, interleaved, from the first or the second half of a vector.
inline Pairs mix(const __m512i& first, const __m512i& second, bool is_second_half) {
  alignas(64) static constexpr auto kOrders = [] {
    std::array<std::array<uint16_t, 32>, 2> orders{};
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 32; ++i) orders[half][i] = uint16_t(half * 16 + i / 2 + i % 2 * 32);
    return orders;
  }();
  const __m512i order = _mm512_load_si512(kOrders[is_second_half].data());
  return (Pairs)_mm512_permutex2var_epi16(first, order, second);
}

// out[head] += weights[head] @ values, for kHeads heads and one vector of dimensions.
template <int kHeads>
void accumulate_pairs(Tile<Bfloat16> values, const Pair* weights, Prefetch prefetch, float* out, int64_t width) {
  Floats sums[kHeads][2];
  for (int head = 0; head < kHeads; ++head)
    for (int half = 0; half < 2; ++half) sums[head][half] = load(out + head * width + half * kLanes);
  for (int pair = 0; pair < kPairTokens / 2; ++pair) {
    prefetch.issue<kSecondCache>();
    const __m512i first = _mm512_loadu_si512(values.rows + 2 * pair * values.stride);
    const __m512i second = _mm512_loadu_si512(values.rows + (2 * pair + 1) * values.stride);
    const Pairs halves[2] = {mix(first, second, false), mix(first, second, true)};
    for (int head = 0; head < kHeads; ++head) {
      const Pairs weight = splat_number(weights + head * (kSplitTokens / 2) + pair);
      for (int half = 0; half < 2; ++half)
        sums[head][half] = add_product(sums[head][half], weight, halves[half]);
    }
  }
  for (int head = 0; head < kHeads; ++head)
    for (int half = 0; half < 2; ++half) store(out + head * width + half * kLanes, sums[head][half]);
}

struct PairFunctions {
  void (*score)(const Pair*, const Bfloat16*, int64_t, Prefetch, float*);
  void (*accumulate_values)(Tile<Bfloat16>, const Pair*, Prefetch, float*, int64_t);
};

constexpr PairFunctions kPairFunctions[kPairHeads] = {
    {score_pairs<1>, accumulate_pairs<1>}, {score_pairs<2>, accumulate_pairs<2>}, {score_pairs<3>, accumulate_pairs<3>},
    {score_pairs<4>, accumulate_pairs<4>}, {score_pairs<5>, accumulate_pairs<5>}, {score_pairs<6>, accumulate_pairs<6>},
    {score_pairs<7>, accumulate_pairs<7>}, {score_pairs<8>, accumulate_pairs<8>}};

// Weights in pairs of tokens, zeros behind the last of n up to a whole tile.
inline void round_weights(float* weights, int64_t n, Pair* to) {
  const int64_t padded = round_up(n, 2 * kLanes);
  std::fill(weights + n, weights + padded, 0.0f);
  for (int64_t token = 0; token < padded; token += 2 * kLanes)
    _mm512_storeu_si512(to + token / 2,
                        (__m512i)_mm512_cvtne2ps_pbh((__m512)load(weights + token + kLanes),
                                                     (__m512)load(weights + token)));
}

// Attention over one split. The values are prefetched while keys are read, then the keys of the next split.
template <class Stored>
void attention_bfloat16_dot(const Split& split, const Split& next, PartialResult result, float* place) {
  const DecodeAttentionArgs& args = split.row.args;
  const int64_t num_heads = args.group_size, n = split.end - split.begin;
  const PairScratch scratch(args, place);
  const int64_t width = scratch.width;
  const auto for_heads = [&](const auto& body) {
    for (int64_t head = 0; head < num_heads; head += kPairHeads)
      body(kPairFunctions[std::min<int64_t>(kPairHeads, num_heads - head) - 1], head);
  };
  for (int64_t head = 0; head < num_heads; ++head) split.row.copy_query(head, scratch.q + head * width);
  TileReader<Stored, Bfloat16> keys(split, args.layer.k, scratch.tile, kPairTokens, width);
  for (int64_t key = 0; key < n; key += kPairTokens) {
    transpose_keys(keys.read(split.begin + key, std::min<int64_t>(kPairTokens, n - key)), width, scratch.keys);
    const Prefetch prefetch = prefetch_tile<Stored>(split, args.layer.v, key, kPairTokens, width / 2);
    for_heads([&](const PairFunctions& functions, int64_t head) {
      functions.score(scratch.keys, scratch.q + head * width, width, head ? Prefetch() : prefetch,
                      scratch.scores + head * kSplitTokens + key);
    });
  }
  const float factor = args.soft_cap > 0 ? score_scale(args) : score_scale(args) * kLog2E;
  for (int64_t head = 0; head < num_heads; ++head) {
    float* scores = scratch.scores + head * kSplitTokens;
    std::tie(result.sum[head], result.max[head]) = softmax(scores, n, factor, args.soft_cap);
    round_weights(scores, n, scratch.weights + head * (kSplitTokens / 2));
  }
  std::fill_n(result.out, num_heads * result.width, 0.0f);
  TileReader<Stored, Bfloat16> values(split, args.layer.v, scratch.tile, kPairTokens, width);
  for (int64_t token = 0; token < n; token += kPairTokens) {
    const auto tile = values.read(split.begin + token, std::min<int64_t>(kPairTokens, n - token));
    constexpr int64_t kTurns = kPairTokens / 2;
    const Prefetch prefetch =
        prefetch_tile<Stored>(next, args.layer.k, token, kPairTokens, width / kPairDims * kTurns);
    for_heads([&](const PairFunctions& functions, int64_t head) {
      for (int64_t d = 0; d < width; d += kPairDims)
        functions.accumulate_values({tile.rows + d, tile.stride},
                        scratch.weights + head * (kSplitTokens / 2) + token / 2,
                        head ? Prefetch() : prefetch.after(d / kPairDims * kTurns),
                        result.out + head * result.width + d, result.width);
    });
  }
}

}  // namespace baton
