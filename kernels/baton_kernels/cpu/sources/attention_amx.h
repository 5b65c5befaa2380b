// Attention over one split with AMX, in bfloat16: K as rows of head_dim, V transposed inside the block
// ([head_dim, block_size]). Tiles of a cache of 8 bits are widened on the way. Up to 16 query heads of a KV head lie side by side in the lanes; weights are
// rounded to bfloat16, sums are float32.
#pragma once

#include <array>

#include "amx.h"
#include "kv_tiles.h"

namespace baton {

constexpr int kTileTokens = 32;    // tokens at a time: the depth of a tile of weights
constexpr int kTileHeads = 16;
constexpr int kTileDims = 16;      // rows of a tile of transposed values
constexpr int kTileDepth = 32;     // bfloat16 numbers in a row of a tile

// Scratch memory of one thread.
struct TileScratch {
  int64_t key_width;
  float* scores;       // [kSplitTokens + kTileTokens, kTileHeads]; also one tile of results
  Bfloat16* weights;   // [(kSplitTokens + kTileTokens) / 2, kTileHeads, 2]
  Bfloat16* q;         // [key_width / 2, kTileHeads, 2]
  Bfloat16* keys;      // [kTileTokens, key_width]
  Bfloat16* values;    // [width, kTileTokens]
  Bfloat16* query;     // [key_width]

  static constexpr int64_t kScores = (kSplitTokens + kTileTokens) * kTileHeads;
  static int64_t size_of(const DecodeAttentionArgs& args) {
    const int64_t width = round_up(args.layer.head_dim, kTileDepth);
    return kScores + kScores / 2 + width * (kTileHeads + kTileTokens + kTileTokens + 1) / 2;
  }
  TileScratch(const DecodeAttentionArgs& args, float* place)
      : key_width(round_up(args.layer.head_dim, kTileDepth)), scores(place),
        weights(reinterpret_cast<Bfloat16*>(scores + kScores)), q(weights + kScores),
        keys(q + key_width * kTileHeads), values(keys + kTileTokens * key_width),
        query(values + key_width * kTileTokens) {
    std::fill_n(place, size_of(args), 0.0f);
  }
};

// One split cut into tiles of kTileTokens at multiples of it, so that they do not straddle blocks.
struct Tiling {
  int64_t start, begin, end;

  explicit Tiling(const Split& split)
      : start(split.begin / kTileTokens * kTileTokens), begin(split.begin), end(split.end) {}
  int64_t num_tokens() const { return end - start; }
  int64_t first(int64_t tile) const { return std::max(begin, start + tile); }
  int64_t last(int64_t tile) const { return std::min(end, start + tile + kTileTokens); }
};

// Pairs of dimensions in rows, heads side by side; heads from `count` on are zeros.
inline void pack_queries(const Row& row, int64_t head, int64_t count, const TileScratch& scratch) {
  std::fill_n(scratch.q, scratch.key_width * kTileHeads, Bfloat16{0});
  for (int64_t lane = 0; lane < count; ++lane) {
    row.copy_query(head + lane, scratch.query);
    for (int64_t d = 0; d < row.dim(); ++d)
      scratch.q[d / 2 * (2 * kTileHeads) + 2 * lane + d % 2] = scratch.query[d];
  }
}

// scores[token][lane] for the split's tokens; entries of other tokens have no meaning.
template <class Stored>
void score_tiles(const Split& split, const Tiling& tiling, const TileScratch& scratch) {
  TileReader<Stored, Bfloat16> reader(
      split, split.row.args.layer.k, scratch.keys, kTileTokens, scratch.key_width);
  for (int64_t tile = 0; tile < tiling.num_tokens(); tile += kTileTokens) {
    const int64_t first = tiling.first(tile);
    const Tile<Bfloat16> keys =
        reader.read(first, tiling.last(tile) - first, first - tiling.start - tile);
    Prefetch prefetch = prefetch_tile<Stored>(split, split.row.args.layer.k, tiling.last(tile) - split.begin, kTileTokens,
                                       scratch.key_width / kTileDepth);
    zero_tile<0>();
    zero_tile<1>();
    for (int64_t d = 0; d < scratch.key_width; d += kTileDepth) {
      prefetch.issue();
      load_tile<2>(scratch.q + d * kTileHeads, 64);
      load_tile<3>(keys.rows + d, keys.stride * sizeof(Bfloat16));
      load_tile<4>(keys.rows + 16 * keys.stride + d, keys.stride * sizeof(Bfloat16));
      multiply_tiles<0, 3, 2>();
      multiply_tiles<1, 4, 2>();
    }
    store_tile<0>(scratch.scores + tile * kTileHeads, 64);
    store_tile<1>(scratch.scores + (tile + 16) * kTileHeads, 64);
  }
}

// Softmax of the scores: weights as pairs of tokens in rows, zeros outside of the split.
inline void softmax_tiles(
    const DecodeAttentionArgs& args, const Tiling& tiling, const TileScratch& scratch, Floats* sum, Floats* top) {
  const int64_t skipped = tiling.begin - tiling.start, n = tiling.num_tokens();
  const float factor = args.soft_cap > 0 ? score_scale(args) : score_scale(args) * kLog2E;
  *top = splat(-INFINITY);
  for (int64_t token = skipped; token < n; ++token) {
    Floats x = load(scratch.scores + token * kTileHeads) * factor;
    if (args.soft_cap > 0) x = soft_cap(x, args.soft_cap) * kLog2E;
    store(scratch.scores + token * kTileHeads, x);
    *top = max(x, *top);
  }
  *sum = Floats{};
  const auto weight_of = [&](int64_t token) {
    if (token < skipped || token >= n) return Floats{};
    return exp2_nonpositive(load(scratch.scores + token * kTileHeads) - *top);
  };
  alignas(64) static constexpr auto kInTurns = [] {   // the halves of a vector in turns
    std::array<uint16_t, 32> order{};
    for (int i = 0; i < 32; ++i) order[i] = uint16_t(i / 2 + i % 2 * 16);
    return order;
  }();
  const __m512i in_turns = _mm512_load_si512(kInTurns.data());
  for (int64_t token = 0; token < round_up(n, kTileTokens); token += 2) {
    const Floats even = weight_of(token), odd = weight_of(token + 1);
    *sum += even + odd;
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    _mm512_storeu_si512(scratch.weights + token * kTileHeads, _mm512_permutexvar_epi16(in_turns, both));
  }
}

// Dimensions in rows, tokens side by side.
template <class Stored>
class ValueReader {
 public:
  ValueReader(const Split& split, Bfloat16* scratch)
      : split_(split), base_(static_cast<const Stored*>(split.row.args.layer.v)), scratch_(scratch) {}

  // Tokens [first, last) as columns from `at` on of rows [d, d + count) of V; zeros around them.
  Tile<Bfloat16> read(int64_t first, int64_t last, int64_t at, int64_t d, int64_t count) {
    const int64_t size = split_.row.block_size(), dim = split_.row.dim();
    if (last - first == kTileTokens && first % size + kTileTokens <= size && d + count <= dim) {
      prefetch(last, d, count);
      if constexpr (std::is_same_v<Stored, Bfloat16>) return {column(first) + d * size, size};
      for (int64_t row = 0; row < count; ++row)
        copy_row(column(first) + (d + row) * size, scratch_ + row * kTileTokens, kTileTokens);
      return {scratch_, kTileTokens};
    }
    std::fill_n(scratch_, count * kTileTokens, Bfloat16{0});
    for (int64_t token = first; token < last; ++token) {
      const Stored* from = column(token) + d * size;
      for (int64_t row = 0; row < std::min(count, dim - d); ++row)
        copy_row(from + row * size, scratch_ + row * kTileTokens + at + token - first, 1);
    }
    return {scratch_, kTileTokens};
  }

 private:
  const Stored* column(int64_t position) const {
    return base_ + split_.row.origin(position) + position % split_.row.block_size();
  }
  void prefetch(int64_t position, int64_t d, int64_t count) const {
    if (position >= split_.end) return;
    const int64_t size = split_.row.block_size();
    const Stored* from = column(position) + d * size;
    for (int64_t row = 0; row < count; ++row) __builtin_prefetch(from + row * size);
  }

  const Split& split_;
  const Stored* base_;
  Bfloat16* scratch_;
};

// A stored tile, [kTileDims dimensions, kTileHeads lanes], as rows of `out`, one per head.
inline void transpose_tile(const float* tile, float* out, int64_t count, int64_t width) {
  for (int64_t lane = 0; lane < count; ++lane)
    for (int64_t d = 0; d < kTileDims; ++d) out[lane * width + d] = tile[d * kTileHeads + lane];
}

// out[head] = weights[head] @ values for `count` heads; dimensions in groups of two tiles.
template <class Stored>
void accumulate_tiles(
    const Split& split, const Tiling& tiling, const TileScratch& scratch, float* out, int64_t count,
    int64_t width) {
  constexpr int64_t kDims = 2 * kTileDims;
  ValueReader<Stored> reader(split, scratch.values);
  for (int64_t d = 0; d < width; d += kDims) {
    zero_tile<0>();
    zero_tile<1>();
    for (int64_t tile = 0; tile < tiling.num_tokens(); tile += kTileTokens) {
      const int64_t first = tiling.first(tile);
      const Tile<Bfloat16> values =
          reader.read(first, tiling.last(tile), first - tiling.start - tile, d, kDims);
      load_tile<2>(scratch.weights + tile * kTileHeads, 64);
      load_tile<3>(values.rows, values.stride * sizeof(Bfloat16));
      load_tile<4>(values.rows + kTileDims * values.stride, values.stride * sizeof(Bfloat16));
      multiply_tiles<0, 3, 2>();
      multiply_tiles<1, 4, 2>();
    }
    store_tile<0>(scratch.scores, 64);
    transpose_tile(scratch.scores, out + d, count, width);
    if (d + kTileDims == width) break;
    store_tile<1>(scratch.scores, 64);
    transpose_tile(scratch.scores, out + d + kTileDims, count, width);
  }
}

template <class Stored>
void attention_amx(const Split& split, const Split&, PartialResult result, float* place) {
  const DecodeAttentionArgs& args = split.row.args;
  const TileScratch scratch(args, place);
  const Tiling tiling(split);
  const TileSession session;
  for (int64_t head = 0; head < args.group_size; head += kTileHeads) {
    const int64_t count = std::min<int64_t>(kTileHeads, args.group_size - head);
    pack_queries(split.row, head, count, scratch);
    score_tiles<Stored>(split, tiling, scratch);
    Floats sum, top;
    softmax_tiles(args, tiling, scratch, &sum, &top);
    for (int64_t lane = 0; lane < count; ++lane)
      result.sum[head + lane] = sum[lane], result.max[head + lane] = top[lane];
    accumulate_tiles<Stored>(split, tiling, scratch, result.out + head * result.width, count, result.width);
  }
}

}  // namespace baton
