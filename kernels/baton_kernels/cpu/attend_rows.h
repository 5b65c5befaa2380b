// Attention over one part of a cache whose K and V are both rows of head_dim, in float32 arithmetic on any CPU.
#pragma once

#include <tuple>

#include "soften.h"
#include "tiles.h"

namespace baton {

constexpr int kKeys = kLanes;  // keys per tile: one vector of scores
constexpr int kValues = 32;    // values per tile
constexpr int kMaxHeads = 8;   // query heads that share one pass over a tile of values

// Scores of a tile's kKeys keys for one head.
inline Floats score_keys(Tile<float> keys, const float* q, int64_t width, Early early) {
  Floats sums[kKeys] = {};
  for (int64_t d = 0; d < width; d += kLanes) {
    early.ask();
    const Floats x = load(q + d);
#pragma GCC unroll 16
    for (int key = 0; key < kKeys; ++key) sums[key] += load(keys.rows + key * keys.stride + d) * x;
  }
  return sum_each(sums);
}

// out[head] += weights[head] @ values, for kHeads heads and kVectors vectors of dimensions.
template <int kHeads, int kVectors>
inline void weigh(Tile<float> values, int64_t n, const float* weights, Early early, float* out, int64_t width) {
  Floats sums[kHeads][kVectors];
  for (int head = 0; head < kHeads; ++head)
    for (int i = 0; i < kVectors; ++i) sums[head][i] = load(out + head * width + i * kLanes);
  for (int64_t token = 0; token < n; ++token) {
    early.ask();
    Floats x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = load(values.rows + token * values.stride + i * kLanes);
    for (int head = 0; head < kHeads; ++head) {
      const Floats weight = splat(weights[head * kPartTokens + token]);
      for (int i = 0; i < kVectors; ++i) sums[head][i] += weight * x[i];
    }
  }
  for (int head = 0; head < kHeads; ++head)
    for (int i = 0; i < kVectors; ++i) store(out + head * width + i * kLanes, sums[head][i]);
}

template <int kHeads>
inline void weigh_tile(
    Tile<float> values, int64_t n, const float* weights, Early early, float* out, int64_t width) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= width; d += 2 * kLanes, early = early.after(n))
    weigh<kHeads, 2>({values.rows + d, values.stride}, n, weights, early, out + d, width);
  if (d < width) weigh<kHeads, 1>({values.rows + d, values.stride}, n, weights, early, out + d, width);
}

inline void weigh_heads(Tile<float> values, int64_t n, const float* weights, Early early, float* out, int64_t width,
                        int64_t num_heads) {
  using Function = void (*)(Tile<float>, int64_t, const float*, Early, float*, int64_t);
  static constexpr Function kFunctions[kMaxHeads] = {
      weigh_tile<1>, weigh_tile<2>, weigh_tile<3>, weigh_tile<4>,
      weigh_tile<5>, weigh_tile<6>, weigh_tile<7>, weigh_tile<8>};
  for (int64_t head = 0; head < num_heads; head += kMaxHeads) {
    const int64_t count = std::min<int64_t>(kMaxHeads, num_heads - head);
    kFunctions[count - 1](values, n, weights + head * kPartTokens, head ? Early() : early, out + head * width, width);
  }
}

// One thread's memory. What a tile or a query holds behind head_dim has to be zeros.
struct RowScratch {
  int64_t width;
  float* values;   // [kValues, width]
  float* keys;     // [kKeys, width]
  float* q;        // [group_size, width]
  float* scores;   // [group_size, kPartTokens]

  static int64_t size_of(const BatonDecode& step) {
    return rows_size(step) + step.group_size * kPartTokens;
  }
  RowScratch(const BatonDecode& step, float* place)
      : width(PartialResult::width_of(step)), values(place), keys(values + kValues * width),
        q(keys + kKeys * width), scores(place + rows_size(step)) {
    std::fill(values, scores, 0.0f);
  }

 private:
  static int64_t rows_size(const BatonDecode& step) {
    return (kValues + kKeys + step.group_size) * PartialResult::width_of(step);
  }
};

// While keys are read their values are asked for, and then the keys of the part that is next.
template <class Stored>
void attend_rows(const Part& part, const Part& next, PartialResult result, float* place) {
  const BatonDecode& step = part.row.step;
  const int64_t width = result.width, num_heads = step.group_size, n = part.end - part.begin;
  const RowScratch scratch(step, place);
  for (int64_t head = 0; head < num_heads; ++head)
    part.row.copy_query(head, scratch.q + head * width);
  TileReader<Stored, float> keys(part, step.layer.k, scratch.keys, kKeys, width);
  for (int64_t key = 0; key < n; key += kKeys) {
    const Tile<float> tile = keys.read(part.begin + key, std::min<int64_t>(kKeys, n - key));
    const int64_t turns = width / kLanes;
    const Early early = ask_for_tile<Stored>(part, step.layer.v, key, kKeys, num_heads * turns);
    for (int64_t head = 0; head < num_heads; ++head)
      store(scratch.scores + head * kPartTokens + key,
            score_keys(tile, scratch.q + head * width, width, early.after(head * turns)));
  }
  const float factor = step.soft_cap > 0 ? step.scale : step.scale * kLog2E;
  for (int64_t head = 0; head < num_heads; ++head)
    std::tie(result.sum[head], result.max[head]) =
        soften(scratch.scores + head * kPartTokens, n, factor, step.soft_cap);
  std::fill_n(result.out, num_heads * width, 0.0f);
  TileReader<Stored, float> values(part, step.layer.v, scratch.values, kValues, width);
  for (int64_t token = 0; token < n; token += kValues) {
    const int64_t count = std::min<int64_t>(kValues, n - token);
    const Tile<float> tile = values.read(part.begin + token, count);
    const int64_t turns = (width + 2 * kLanes - 1) / (2 * kLanes) * count;
    const Early early = ask_for_tile<Stored>(next, step.layer.k, token, kValues, turns);
    weigh_heads(tile, count, scratch.scores + token, early, result.out, width, num_heads);
  }
}

}  // namespace baton
