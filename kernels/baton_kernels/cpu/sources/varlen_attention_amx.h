// Attention of prompts with AMX, in bfloat16. A row is a query token with one query head; 16 rows lie side by side in
// the lanes: a column. Rows take keys in splits of kPromptSplit tokens, cut at multiples of it and in order. Scores,
// maxima and weights are lanes, so that a row's numbers depend on no other row: they are the same however a prompt is
// cut. Weights are rounded to bfloat16, sums are float32.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "amx.h"
#include "key_tiles.h"
#include "softmax.h"

namespace baton {

constexpr int64_t kPromptSplit = 128;
constexpr int64_t kReadBytes = 1 << 19;   // K and V that are read at a time: a quarter of the second cache
constexpr float kNoScore = -3e38f;    // the maximum of a row without keys

// What the tiles of a call share.
struct PromptTask {
  const Bfloat16* q;
  Bfloat16* out;
  const float* sinks;
  int64_t q_stride, num_kv_heads, group_size, dim;
  int64_t before, after;   // keys that a row sees on either side of its own
  float factor, cap, v_scale;

  int64_t width() const { return round_up(dim, kTileKeys); }

  // Keys that are read at a time.
  int64_t num_read() const {
    const int64_t key_bytes = 2 * width() * int64_t{sizeof(Bfloat16)};
    return std::max<int64_t>(1, kReadBytes / key_bytes / kPromptSplit) * kPromptSplit;
  }
};

// The keys [first, behind) of a sequence that a row sees.
struct KeyRange {
  int64_t first, behind;
};

// 2^x for x that is not above 0 by more than rounding; a relative error of 7e-5, far below that of a weight in
// bfloat16. Minus infinity gives 0, and NaN stays NaN.
inline Floats weight_of(Floats x) {
  constexpr int kFloor = 1;
  const Floats f = (Floats)_mm512_reduce_ps((__m512)x, kFloor);
  const Floats power = ((0.07802452f * f + 0.22606716f) * f + 0.69583354f) * f + 0.99992522f;
  return (Floats)_mm512_scalef_ps((__m512)power, (__m512)x);
}

// Two keys' weights of 16 rows as pairs.
inline __m512i pair_weights(Floats even, Floats odd) {
  alignas(64) static constexpr auto kInTurns = [] {
    std::array<uint16_t, 32> order{};
    for (int i = 0; i < 32; ++i) order[i] = uint16_t(i / 2 + i % 2 * 16);
    return order;
  }();
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInTurns.data()), both);
}

// Rows of one KV head and one sequence, with the scratch memory of a thread.
template <class Keys>
class PromptTile {
 public:
  // Floats of scratch memory for `most_rows` rows.
  static int64_t size_of(const PromptTask& task, int64_t most_rows) {
    const int64_t columns = num_columns(most_rows), width = task.width();
    return columns * kTileLanes * (width + width / 2 + 2) + 2 * kPromptSplit * kTileLanes * 3 / 2 +
           task.num_read() * width + task.num_read() / kTileKeys * int64_t{sizeof(KeyTile) / sizeof(float)};
  }

  PromptTile(const PromptTask& task, const Keys& keys, const QueryTile& tile, float* place)
      : task_(task), keys_(keys), tile_(tile), width_(task.width()), num_rows_(tile.num_tokens * task.group_size),
        columns_(num_columns(num_rows_)), out_(place), scores_(out_ + columns_ * width_ * kTileLanes),
        max_(scores_ + 2 * kPromptSplit * kTileLanes), sums_(max_ + columns_ * kTileLanes),
        q_(reinterpret_cast<Bfloat16*>(sums_ + columns_ * kTileLanes)), weights_(q_ + columns_ * width_ * kTileLanes),
        k_(weights_ + 2 * kPromptSplit * kTileLanes), v_(k_ + task.num_read() * width_),
        tiles_(reinterpret_cast<KeyTile*>(v_ + task.num_read() * width_)) {}

  void run() {
    const TileSession session;
    begin();
    const int64_t end = keys_.end_of(tile_);
    const KeyRange all{seen(0, end).first, seen(num_rows_ - 1, end).behind};
    for (int64_t start = all.first / kPromptSplit * kPromptSplit, next; start < all.behind; start = next) {
      next = start + task_.num_read();
      read(start, next, all);
      for (int64_t column = 0; column < columns_; column += 2) {
        const auto fold_split = columns_ - column > 1 ? fold<2> : fold<1>;
        for (int64_t split = start; split < std::min(next, all.behind); split += kPromptSplit)
          fold_split(*this, split - start, split, column, end);
      }
    }
    for (int64_t column = 0; column < columns_; ++column) write(column);
  }

 private:
  static int64_t num_columns(int64_t num_rows) { return (num_rows + kTileLanes - 1) / kTileLanes; }

  int64_t q_head(int64_t row) const { return tile_.kv_head * task_.group_size + row % task_.group_size; }

  // The keys that a row sees; lanes behind the last row see what it sees.
  KeyRange seen(int64_t row, int64_t end) const {
    const int64_t position = tile_.position + std::min(row, num_rows_ - 1) / task_.group_size;
    return {std::max<int64_t>(0, position - task_.before), std::min(end, position + task_.after + 1)};
  }

  // Pack the queries, pairs of dimensions with rows side by side; a sink is a first key without a value.
  void begin() {
    std::fill_n(out_, columns_ * width_ * kTileLanes, 0.0f);
    if (width_ != task_.dim) std::fill_n(k_, 2 * task_.num_read() * width_, Bfloat16{0});
    for (int64_t row = 0; row < columns_ * kTileLanes; ++row) {
      const float sink = row < num_rows_ ? sink_of(task_, q_head(row)) : -INFINITY;
      max_[row] = sink == -INFINITY ? kNoScore : sink;
      sums_[row] = sink == -INFINITY ? 0.0f : 1.0f;
    }
    for (int64_t column = 0; column < columns_; ++column)
      for (int64_t d = 0; d < width_; d += kTileKeys) {
        __m512i rows[kTileLanes];
        for (int64_t lane = 0; lane < kTileLanes; ++lane) {
          const int64_t row = column * kTileLanes + lane, token = tile_.token + row / task_.group_size;
          const Bfloat16* from = task_.q + token * task_.q_stride + q_head(row) * task_.dim;
          rows[lane] = row < num_rows_ ? row_part(from, d, task_.dim) : _mm512_setzero_si512();
        }
        transpose(rows, reinterpret_cast<Pair*>(q_ + (column * width_ + d) * kTileLanes));
      }
  }

  // Find or read the keys of `all` that lie in [start, next). The values of other keys of a tile are zeros.
  void read(int64_t start, int64_t next, KeyRange all) {
    for (int64_t position = start; position < std::min(next, all.behind); position += kTileKeys) {
      const int64_t first = std::max(position, all.first), last = std::min(position + kTileKeys, all.behind);
      KeyTile& tile = tiles_[(position - start) / kTileKeys];
      if (last <= first || (last - first == kTileKeys && keys_.find(tile_, position, width_, tile))) continue;
      Bfloat16 *k = k_ + (position - start) * width_, *v = v_ + (position - start) * width_;
      if (last - first < kTileKeys) std::fill_n(v, width_ * kTileKeys, Bfloat16{0});
      keys_.read(tile_, first, last, width_, k + (first - position) * width_, v + first - position);
      tile = {k, v, width_, kTileKeys};
    }
  }

  // Fold the split that begins at `start`, whose tiles are those from place `at` on, into kColumns columns. Tiles that
  // none of their rows sees are left out.
  template <int64_t kColumns>
  static void fold(PromptTile& own, int64_t at, int64_t start, int64_t column, int64_t end) {
    const int64_t row = column * kTileLanes, behind_row = row + kColumns * kTileLanes - 1;
    const KeyRange oldest = own.seen(row, end), latest = own.seen(behind_row, end);
    const int64_t first = std::max<int64_t>(0, oldest.first - start) / kTileKeys * kTileKeys;
    const int64_t last = std::min(kPromptSplit, round_up(latest.behind - start, kTileKeys));
    if (first >= last) return;
    const KeyTile* tiles = own.tiles_ + at / kTileKeys;
    own.score<kColumns>(column, first, last, tiles);
    const bool is_whole = latest.first <= start + first && oldest.behind >= start + last;
    for (int64_t i = 0; i < kColumns; ++i) {
      if (own.task_.cap > 0) own.cap_scores(i, first, last);
      if (!is_whole) own.mask(i, column + i, start, first, last, end);
      own.softmax(i, column + i, first, last);
    }
    own.accumulate<kColumns>(column, first, last, tiles);
  }

  float* scores(int64_t i) const { return scores_ + i * kPromptSplit * kTileLanes; }
  Bfloat16* weights(int64_t i) const { return weights_ + i * kPromptSplit * kTileLanes; }
  float* out(int64_t column, int64_t d) const { return out_ + (column * width_ + d) * kTileLanes; }

  // Scores [keys, 16 rows] of keys [first, last) for each column.
  template <int64_t kColumns>
  void score(int64_t column, int64_t first, int64_t last, const KeyTile* tiles) const {
    const Bfloat16 *left = q_ + column * width_ * kTileLanes, *right = left + width_ * kTileLanes;
    for (int64_t key = first; key < last; key += kTileKeys) {
      const KeyTile& tile = tiles[key / kTileKeys];
      const int64_t stride = tile.k_stride * sizeof(Bfloat16);
      zero_tile<0>(), zero_tile<1>();
      if constexpr (kColumns == 2) zero_tile<2>(), zero_tile<3>();
      for (int64_t d = 0; d < width_; d += kTileKeys) {
        const Bfloat16* k = tile.k + d;
        load_tile<4>(left + d * kTileLanes, 64);
        load_tile<6>(k, stride);
        multiply_tiles<0, 6, 4>();
        load_tile<7>(k + 16 * tile.k_stride, stride);
        multiply_tiles<1, 7, 4>();
        if constexpr (kColumns == 2) {
          load_tile<5>(right + d * kTileLanes, 64);
          multiply_tiles<2, 6, 5>();
          multiply_tiles<3, 7, 5>();
        }
      }
      store_tile<0>(scores(0) + key * kTileLanes, 64), store_tile<1>(scores(0) + (key + 16) * kTileLanes, 64);
      if constexpr (kColumns == 2)
        store_tile<2>(scores(1) + key * kTileLanes, 64), store_tile<3>(scores(1) + (key + 16) * kTileLanes, 64);
    }
  }

  void cap_scores(int64_t i, int64_t first, int64_t last) const {
    for (float *x = scores(i) + first * kTileLanes, *end = scores(i) + last * kTileLanes; x < end; x += kTileLanes)
      store(x, soft_cap(load(x) * task_.factor, task_.cap) * kLog2E);
  }

  // Set the scores of keys that rows do not see to minus infinity.
  void mask(int64_t i, int64_t column, int64_t start, int64_t first, int64_t last, int64_t end) const {
    Ints from, behind;
    for (int64_t lane = 0; lane < kTileLanes; ++lane) {
      const KeyRange range = seen(column * kTileLanes + lane, end);
      from[lane] = std::max<int64_t>(range.first - start, 0);
      behind[lane] = std::clamp<int64_t>(range.behind - start, 0, kPromptSplit);
    }
    for (int64_t key = first; key < last; ++key) {
      float* x = scores(i) + key * kTileLanes;
      store(x, ((from <= int32_t(key)) & (behind > int32_t(key))) ? load(x) : splat(-INFINITY));
    }
  }

  // Turn scores into weights, pairs of keys with rows side by side, and fold them into the maxima and sums of the rows.
  void softmax(int64_t i, int64_t column, int64_t first, int64_t last) {
    constexpr int kChains = 8;
    const float* x = scores(i);
    float *own_max = max_ + column * kTileLanes, *own_sums = sums_ + column * kTileLanes;
    Floats largest[kChains];
    for (int chain = 0; chain < kChains; ++chain) largest[chain] = splat(-INFINITY);
    for (int64_t key = first; key < last; key += kChains)
      for (int chain = 0; chain < kChains; ++chain)
        largest[chain] = max(load(x + (key + chain) * kTileLanes), largest[chain]);
    for (int chain = 1; chain < kChains; ++chain) largest[0] = max(largest[chain], largest[0]);
    const float factor = task_.cap > 0 ? 1.0f : task_.factor * kLog2E;
    const Floats before = load(own_max), top = max(largest[0] * factor, before);
    if (any(top > before)) raise_max(column, before - top);
    store(own_max, top);
    Floats sum = {}, odd_sum = {};
    Bfloat16* to = weights(i);
    for (int64_t key = first; key < last; key += 2) {
      const Floats even = weight_of(load(x + key * kTileLanes) * factor - top);
      const Floats odd = weight_of(load(x + (key + 1) * kTileLanes) * factor - top);
      sum += even, odd_sum += odd;
      _mm512_storeu_si512(to + key * kTileLanes, pair_weights(even, odd));
    }
    store(own_sums, load(own_sums) + (sum + odd_sum));
  }

  // Rescale a column's results and sums by powers of two.
  void raise_max(int64_t column, Floats power) {
    const Floats shrink = exp2_nonpositive(power);
    float *own_sums = sums_ + column * kTileLanes, *own_out = out(column, 0);
    store(own_sums, load(own_sums) * shrink);
    for (int64_t d = 0; d < width_; ++d) store(own_out + d * kTileLanes, load(own_out + d * kTileLanes) * shrink);
  }

  // Add the values of keys [first, last), by their weights.
  template <int64_t kColumns>
  void accumulate(int64_t column, int64_t first, int64_t last, const KeyTile* tiles) const {
    for (int64_t d = 0; d < width_; d += kTileKeys) {
      load_tile<0>(out(column, d), 64), load_tile<1>(out(column, d + 16), 64);
      if constexpr (kColumns == 2) load_tile<2>(out(column + 1, d), 64), load_tile<3>(out(column + 1, d + 16), 64);
      for (int64_t key = first; key < last; key += kTileKeys) {
        const KeyTile& tile = tiles[key / kTileKeys];
        const Bfloat16* v = tile.v + d * tile.v_stride;
        const int64_t stride = tile.v_stride * sizeof(Bfloat16);
        load_tile<4>(weights(0) + key * kTileLanes, 64);
        load_tile<6>(v, stride);
        multiply_tiles<0, 6, 4>();
        load_tile<7>(v + 16 * tile.v_stride, stride);
        multiply_tiles<1, 7, 4>();
        if constexpr (kColumns == 2) {
          load_tile<5>(weights(1) + key * kTileLanes, 64);
          multiply_tiles<2, 6, 5>();
          multiply_tiles<3, 7, 5>();
        }
      }
      store_tile<0>(out(column, d), 64), store_tile<1>(out(column, d + 16), 64);
      if constexpr (kColumns == 2) store_tile<2>(out(column + 1, d), 64), store_tile<3>(out(column + 1, d + 16), 64);
    }
  }

  // Divide a column by its sums and write its rows. Rows without keys are zeros.
  void write(int64_t column) const {
    const Floats sums = load(sums_ + column * kTileLanes);
    const Floats by = sums == 0.0f ? Floats{} : task_.v_scale / sums;
    const int64_t count = std::min(kTileLanes, num_rows_ - column * kTileLanes);
    const int64_t stride = task_.num_kv_heads * task_.group_size * task_.dim;
    for (int64_t d = 0; d < task_.dim; d += kTileLanes) {
      __m512i dims[kTileLanes];
      for (int64_t i = 0; i < kTileLanes; ++i) dims[i] = (__m512i)(load(out(column, d + i)) * by);
      Pair rows[kTileLanes][kTileLanes];
      transpose(dims, rows[0]);
      for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t row = column * kTileLanes + lane;
        Bfloat16* to = task_.out + (tile_.token + row / task_.group_size) * stride + q_head(row) * task_.dim + d;
        copy_row(reinterpret_cast<const float*>(rows[lane]), to, std::min(kTileLanes, task_.dim - d));
      }
    }
  }

  const PromptTask& task_;
  const Keys& keys_;
  const QueryTile& tile_;
  const int64_t width_, num_rows_, columns_;
  float* const out_;       // [columns, width, 16], not divided yet
  float* const scores_;    // [2, kPromptSplit, 16]
  float* const max_;       // [columns, 16]
  float* const sums_;      // [columns, 16], of the weights
  Bfloat16* const q_;      // [columns, width / 2, 16, 2], zeros behind dim
  Bfloat16* const weights_;   // [2, kPromptSplit / 2, 16, 2]
  Bfloat16* const k_;      // [num_read, width]
  Bfloat16* const v_;      // [num_read / 32, width, 32]
  KeyTile* const tiles_;   // [num_read / 32]
};

inline PromptTask task_of(const VarlenAttentionArgs& args) {
  return {.q = static_cast<const Bfloat16*>(args.q),
          .out = static_cast<Bfloat16*>(args.out),
          .sinks = args.sinks,
          .q_stride = args.q_stride,
          .num_kv_heads = args.layer.num_kv_heads,
          .group_size = args.group_size,
          .dim = args.layer.head_dim,
          .before = args.window ? args.window - 1 : INT32_MAX,
          .after = 0,
          .factor = args.scale * args.layer.k_scale,
          .cap = args.soft_cap,
          .v_scale = args.layer.v_scale};
}

inline PromptTask task_of(const BidirectionalAttentionArgs& args) {
  const int64_t reach = args.window < 0 ? INT32_MAX : args.window;
  return {.q = static_cast<const Bfloat16*>(args.q),
          .out = static_cast<Bfloat16*>(args.out),
          .sinks = nullptr,
          .q_stride = args.q_stride,
          .num_kv_heads = args.num_kv_heads,
          .group_size = args.group_size,
          .dim = args.head_dim,
          .before = reach,
          .after = reach,
          .factor = args.scale,
          .cap = 0,
          .v_scale = 1};
}

}  // namespace baton
