// Attention over one split of a cache whose K and V are both rows of head_dim, in float32 arithmetic on any CPU.
#pragma once

#include <tuple>

#include "softmax.h"
#include "kv_tiles.h"

namespace baton {

constexpr int kKeys = kLanes;  // keys per tile: one vector of scores
constexpr int kValues = 32;    // values per tile
constexpr int kMaxHeads = 8;   // query heads that share one pass over a tile of values

// Scores of a tile's kKeys keys for one head.
inline Floats score_keys(Tile<float> keys, const float* q, int64_t width, Prefetch prefetch) {
  Floats sums[kKeys] = {};
  for (int64_t d = 0; d < width; d += kLanes) {
    prefetch.issue<kSecondCache>();
    const Floats x = load(q + d);
#pragma GCC unroll 16
    for (int key = 0; key < kKeys; ++key) sums[key] += load(keys.rows + key * keys.stride + d) * x;
  }
  return sum_each(sums);
}

// out[head] += weights[head] @ values, for kHeads heads and kVectors vectors of dimensions.
template <int kHeads, int kVectors>
inline void accumulate_values(Tile<float> values, int64_t n, const float* weights, Prefetch prefetch, float* out, int64_t width) {
  Floats sums[kHeads][kVectors];
  for (int head = 0; head < kHeads; ++head)
    for (int i = 0; i < kVectors; ++i) sums[head][i] = load(out + head * width + i * kLanes);
  for (int64_t token = 0; token < n; ++token) {
    prefetch.issue<kSecondCache>();
    Floats x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = load(values.rows + token * values.stride + i * kLanes);
    for (int head = 0; head < kHeads; ++head) {
      const Floats weight = splat(weights[head * kSplitTokens + token]);
      for (int i = 0; i < kVectors; ++i) sums[head][i] += weight * x[i];
    }
  }
  for (int head = 0; head < kHeads; ++head)
    for (int i = 0; i < kVectors; ++i) store(out + head * width + i * kLanes, sums[head][i]);
}

template <int kHeads>
inline void accumulate_tile(
    Tile<float> values, int64_t n, const float* weights, Prefetch prefetch, float* out, int64_t width) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= width; d += 2 * kLanes, prefetch = prefetch.after(n))
    accumulate_values<kHeads, 2>({values.rows + d, values.stride}, n, weights, prefetch, out + d, width);
  if (d < width) accumulate_values<kHeads, 1>({values.rows + d, values.stride}, n, weights, prefetch, out + d, width);
}

inline void accumulate_heads(Tile<float> values, int64_t n, const float* weights, Prefetch prefetch, float* out, int64_t width,
                        int64_t num_heads) {
  using Function = void (*)(Tile<float>, int64_t, const float*, Prefetch, float*, int64_t);
  static constexpr Function kFunctions[kMaxHeads] = {
      accumulate_tile<1>, accumulate_tile<2>, accumulate_tile<3>, accumulate_tile<4>,
      accumulate_tile<5>, accumulate_tile<6>, accumulate_tile<7>, accumulate_tile<8>};
  for (int64_t head = 0; head < num_heads; head += kMaxHeads) {
    const int64_t count = std::min<int64_t>(kMaxHeads, num_heads - head);
    kFunctions[count - 1](values, n, weights + head * kSplitTokens, head ? Prefetch() : prefetch, out + head * width, width);
  }
}

// Scratch memory of one thread. A tile or a query is zeros behind head_dim.
struct RowScratch {
  int64_t width;
  float* values;   // [kValues, width]
  float* keys;     // [kKeys, width]
  float* q;        // [group_size, width]
  float* scores;   // [group_size, kSplitTokens]

  static int64_t size_of(const DecodeAttentionArgs& args) {
    return rows_size(args) + args.group_size * kSplitTokens;
  }
  RowScratch(const DecodeAttentionArgs& args, float* place)
      : width(PartialResult::width_of(args)), values(place), keys(values + kValues * width),
        q(keys + kKeys * width), scores(place + rows_size(args)) {
    std::fill(values, scores, 0.0f);
  }

 private:
  static int64_t rows_size(const DecodeAttentionArgs& args) {
    return (kValues + kKeys + args.group_size) * PartialResult::width_of(args);
  }
};

// Attention over one split. The values are prefetched while keys are read, then the keys of the next split.
template <class Stored>
void attention_vectors(const Split& split, const Split& next, PartialResult result, float* place) {
  const DecodeAttentionArgs& args = split.row.args;
  const int64_t width = result.width, num_heads = args.group_size, n = split.end - split.begin;
  const RowScratch scratch(args, place);
  for (int64_t head = 0; head < num_heads; ++head)
    split.row.copy_query(head, scratch.q + head * width);
  TileReader<Stored, float> keys(split, args.layer.k, scratch.keys, kKeys, width);
  for (int64_t key = 0; key < n; key += kKeys) {
    const Tile<float> tile = keys.read(split.begin + key, std::min<int64_t>(kKeys, n - key));
    const int64_t turns = width / kLanes;
    const Prefetch prefetch = prefetch_tile<Stored>(split, args.layer.v, key, kKeys, num_heads * turns);
    for (int64_t head = 0; head < num_heads; ++head)
      store(scratch.scores + head * kSplitTokens + key,
            score_keys(tile, scratch.q + head * width, width, prefetch.after(head * turns)));
  }
  const float factor = args.soft_cap > 0 ? score_scale(args) : score_scale(args) * kLog2E;
  for (int64_t head = 0; head < num_heads; ++head)
    std::tie(result.sum[head], result.max[head]) =
        softmax(scratch.scores + head * kSplitTokens, n, factor, args.soft_cap);
  std::fill_n(result.out, num_heads * width, 0.0f);
  TileReader<Stored, float> values(split, args.layer.v, scratch.values, kValues, width);
  for (int64_t token = 0; token < n; token += kValues) {
    const int64_t count = std::min<int64_t>(kValues, n - token);
    const Tile<float> tile = values.read(split.begin + token, count);
    const int64_t turns = (width + 2 * kLanes - 1) / (2 * kLanes) * count;
    const Prefetch prefetch = prefetch_tile<Stored>(next, args.layer.k, token, kValues, turns);
    accumulate_heads(tile, count, scratch.scores + token, prefetch, result.out, width, num_heads);
  }
}

}  // namespace baton
