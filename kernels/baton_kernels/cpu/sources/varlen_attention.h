// Attention over the cache for slices of any length: a query folds its keys in splits of kVarlenSplit tokens, cut at
// multiples of kVarlenSplit and in order, independently of the rest of the step. Prompt chunks go through it, and
// in the batch-invariant mode all slices. With AVX512-BF16 products of bfloat16 are taken in pairs; arithmetic is
// float32 otherwise.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "gemm_panel.h"
#include "kv_cache.h"
#include "softmax.h"
#include "structs.h"
#if BATON_BFLOAT16_DOT
#include "attention_bfloat16_dot.h"
#endif

namespace baton {

constexpr int64_t kVarlenSplit = 64;
constexpr int64_t kTileRows = 384;     // pairs of a token and a query head that share a pass over the keys
constexpr int64_t kWorkRows = 48;      // rows whose scores are in work: they stay in the first-level cache

// Some query tokens of one sequence with the query heads of one KV head.
struct QueryTile {
  int64_t seq, kv_head;
  int64_t token, position;   // first token: its row of q, and its position in the sequence
  int64_t num_tokens;
};

template <class Args>
int64_t tokens_per_tile(const Args& args) {
  return std::max<int64_t>(1, kTileRows / args.group_size);
}

// The tiles of the slices of `least_tokens` or more, the first token of which follows `context_of` others. The later tiles
// of a sequence see more keys, so they come first: no thread is left with a large one at the end.
template <class Args, class Context>
std::vector<QueryTile> query_tiles(const Args& args, int64_t num_kv_heads, int64_t least_tokens,
                                   const Context& context_of) {
  std::vector<QueryTile> tiles;
  for (int64_t seq = 0; seq < args.num_seqs; ++seq) {
    const int64_t begin = args.query_start[seq], end = args.query_start[seq + 1];
    if (end - begin < least_tokens) continue;
    const int64_t context = context_of(seq, end - begin);
    for (int64_t token = begin; token < end; token += tokens_per_tile(args))
      for (int64_t head = 0; head < num_kv_heads; ++head)
        tiles.push_back(
            {seq, head, token, context + token - begin, std::min(tokens_per_tile(args), end - token)});
  }
  std::reverse(tiles.begin(), tiles.end());
  return tiles;
}

inline std::vector<QueryTile> query_tiles(const VarlenAttentionArgs& args) {
  return query_tiles(args, args.layer.num_kv_heads, args.least_tokens,
                     [&](int64_t seq, int64_t num_tokens) { return args.lengths[seq] - num_tokens; });
}

// Scratch memory of one thread for one tile, in floats.
template <class Number>
struct TileMemory {
  using Element = typename Packing<Number>::Element;
  static constexpr int64_t kDepth = Packing<Number>::kDepth;

  int64_t dim, width, inner, num_rows;
  Number* keys;       // [kVarlenSplit / kPanelWidth, inner, kPanelWidth], zeros behind dim
  Number* values;     // [kVarlenSplit / kDepth, width], zeros behind dim
  Number* q;          // [num_rows, inner], zeros behind dim
  float* scores;      // [kWorkRows, kVarlenSplit]
  Number* weights;    // [kWorkRows, kVarlenSplit / kDepth]
  float* out;         // [num_rows, width], not divided yet
  float* max;         // [num_rows]
  float* sums;        // [num_rows, kLanes], of the weights: their sum in parts
  Element* widened;   // [dim], a row of a cache of 8 bits

  static int64_t size_of(const VarlenAttentionArgs& args) {
    const int64_t dim = args.layer.head_dim, width = round_up(dim, kPanelWidth);
    const int64_t inner = round_up(dim, kDepth) / kDepth, rows = tokens_per_tile(args) * args.group_size;
    return kVarlenSplit * (inner + width / kDepth) + kWorkRows * (kVarlenSplit + kVarlenSplit / kDepth) +
           rows * (inner + width + 1 + kLanes) + dim;
  }
  TileMemory(const VarlenAttentionArgs& args, const QueryTile& tile, float* place)
      : dim(args.layer.head_dim), width(round_up(dim, kPanelWidth)), inner(round_up(dim, kDepth) / kDepth),
        num_rows(tile.num_tokens * args.group_size), keys(reinterpret_cast<Number*>(place)),
        values(keys + kVarlenSplit * inner), q(values + kVarlenSplit / kDepth * width),
        scores(reinterpret_cast<float*>(q + num_rows * inner)),
        weights(reinterpret_cast<Number*>(scores + kWorkRows * kVarlenSplit)),
        out(reinterpret_cast<float*>(weights + kWorkRows * kVarlenSplit / kDepth)), max(out + num_rows * width),
        sums(max + num_rows), widened(reinterpret_cast<Element*>(sums + num_rows * kLanes)) {
    std::fill(place, scores, 0.0f);
    std::fill(out, max, 0.0f);
    std::fill_n(sums, num_rows * kLanes, 0.0f);
    for (int64_t row = 0; row < num_rows; ++row) {   // a sink is a first key without a value
      max[row] = sink_of(args, tile.kv_head * args.group_size + row % args.group_size);
      if (max[row] != -INFINITY) sums[row * kLanes] = 1;
    }
  }
};

inline void interleave(const float* from, int64_t n, int64_t, float* to) { copy_row(from, to, n); }

// Store a row into one number of each pair: the first for place 0, the second for 1.
inline void interleave(const Bfloat16* from, int64_t n, int64_t place, Pair* to) {
  Bfloat16* half = reinterpret_cast<Bfloat16*>(to) + place;
  for (int64_t i = 0; i < n; ++i) half[2 * i] = from[i];
}

inline void interleave(const Bfloat16* from, int64_t n, int64_t, float* to) { copy_row(from, to, n); }

// Store the numbers of a key as a column of a panel.
inline void scatter(const float* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i * kPanelWidth] = from[i];
}

inline void scatter(const Bfloat16* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i * kPanelWidth] = widen(from[i]);
}

inline void scatter(const Bfloat16* from, int64_t n, Pair* to) {
  for (int64_t i = 0; i + 2 <= n; i += 2) to[i / 2 * kPanelWidth] = {from[i], from[i + 1]};
  if (n % 2) to[n / 2 * kPanelWidth] = {from[n - 1], 0};
}

// A row of the cache as numbers: where it lies, or widened.
inline const float* numbers_of(const float* row, int64_t, void*) { return row; }

inline const Bfloat16* numbers_of(const Bfloat16* row, int64_t, void*) { return row; }

template <class Format, class Element, class = std::enable_if_t<kIsFloat8<Format>>>
const Element* numbers_of(const Format* row, int64_t n, Element* widened) {
  copy_row(row, widened, n);
  return widened;
}

// Ask for a row that is read soon: rows of prompts lie too far apart for a CPU to see what comes next.
template <class Element>
void prefetch_row(const Element* row, int64_t n) {
  const char* bytes = reinterpret_cast<const char*>(row);
  for (int64_t i = 0; i < n * int64_t{sizeof(Element)}; i += 64) __builtin_prefetch(bytes + i);
}

#if BATON_BFLOAT16_DOT
// Read the rows of kPairTokens keys and values, of whole vectors, to places from `i` on.
inline void read_tile(const Bfloat16* k, const Bfloat16* v, const int64_t* rows, int64_t i, const TileMemory<Pair>& memory) {
  Pair* keys = memory.keys + i / kPanelWidth * kPanelWidth * memory.inner + i % kPanelWidth;
  Pair* values = memory.values + i / 2 * memory.width;
  for (int64_t d = 0; d < memory.dim; d += kPairDims) {
    __m512i parts[kPairTokens];
    for (int key = 0; key < kPairTokens; ++key) parts[key] = _mm512_loadu_si512(k + rows[key] + d);
    transpose(parts, keys + d / 2 * kPanelWidth, kPanelWidth);
    for (int key = 0; key < kPairTokens; key += 2) {
      const __m512i first = _mm512_loadu_si512(v + rows[key] + d);
      const __m512i second = _mm512_loadu_si512(v + rows[key + 1] + d);
      Pair* to = values + key / 2 * memory.width + d;
      _mm512_storeu_si512(to, (__m512i)mix(first, second, false));
      _mm512_storeu_si512(to + kLanes, (__m512i)mix(first, second, true));
    }
  }
}
#endif

// Read the tokens of [begin, end) that lie in the split that begins with token `start`; the rest of it is zeros.
template <class Stored, class Number>
__attribute__((noinline)) void read_split(const VarlenAttentionArgs& args, const QueryTile& tile, int64_t start,
                                          int64_t begin, int64_t end, const TileMemory<Number>& memory) {
  constexpr int64_t kDepth = TileMemory<Number>::kDepth;
  const KvLayer& layer = args.layer;
  const int64_t dim = memory.dim, size = layer.block_size;
  const int64_t first = std::max(start, begin), last = std::min(start + kVarlenSplit, end);
  const auto row_of = [&](int64_t position) {
    const int64_t block = args.tables[tile.seq * args.table_stride + position / size];
    return block * layer.block_stride + (tile.kv_head * size + position % size) * dim;
  };
  const auto *k = static_cast<const Stored*>(layer.k), *v = static_cast<const Stored*>(layer.v);
  for (int64_t position = first; position < last; ++position) {
    prefetch_row(k + row_of(position), dim);
    prefetch_row(v + row_of(position), dim);
  }
  if (last - first < kVarlenSplit) std::fill(memory.keys, memory.q, Number{});
  for (int64_t position = first; position < last; ++position) {
    const int64_t i = position - start, row = row_of(position);
#if BATON_BFLOAT16_DOT
    if constexpr (std::is_same_v<Stored, Bfloat16> && std::is_same_v<Number, Pair>)
      if (i % kPairTokens == 0 && last - position >= kPairTokens && dim % kPairDims == 0) {
        int64_t rows[kPairTokens];
        for (int key = 0; key < kPairTokens; ++key) rows[key] = row_of(position + key);
        read_tile(k, v, rows, i, memory);
        position += kPairTokens - 1;
        continue;
      }
#endif
    scatter(numbers_of(k + row, dim, memory.widened), dim,
            memory.keys + i / kPanelWidth * kPanelWidth * memory.inner + i % kPanelWidth);
    interleave(numbers_of(v + row, dim, memory.widened), dim, i % kDepth, memory.values + i / kDepth * memory.width);
  }
}

inline void store_weights(const Floats* weights, float* to) {
  for (int i = 0; i < kVarlenSplit / kLanes; ++i) store(to + i * kLanes, weights[i]);
}

#if BATON_BFLOAT16_DOT
inline void store_weights(const Floats* weights, Pair* to) {
  for (int i = 0; i < kVarlenSplit / kLanes; i += 2)
    _mm512_storeu_si512(to + i / 2 * kLanes,
                        (__m512i)_mm512_cvtne2ps_pbh((__m512)weights[i + 1], (__m512)weights[i]));
}
#endif

// Set the scores outside of the keys [first, last) to minus infinity.
inline void mask(Floats* scores, int64_t first, int64_t last) {
  Ints lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  for (int i = 0; i < kVarlenSplit / kLanes; ++i) {
    const Ints keys = lanes + i * kLanes;
    scores[i] = ((keys >= int32_t(first)) & (keys < int32_t(last))) ? scores[i] : splat(-INFINITY);
  }
}

// The scaling of scores before the softmax.
struct SoftmaxScale {
  float factor, cap;
};

// Rescale a row's result and sums to a new largest score.
template <class Number>
void raise_max(float top, int64_t row, const TileMemory<Number>& memory) {
  const float shrink = exp2_nonpositive(splat(memory.max[row] - top))[0];
  float *out = memory.out + row * memory.width, *sums = memory.sums + row * kLanes;
  for (int64_t d = 0; d < memory.width; d += kLanes) store(out + d, load(out + d) * shrink);
  store(sums, load(sums) * shrink);
  memory.max[row] = top;
}

// Turn a row's scores for the keys [first, last) into weights, and fold them into its maximum and sums.
template <bool kIsCapped, class Number>
__attribute__((always_inline)) inline void softmax_row(const float* scores, int64_t first, int64_t last,
                                                      SoftmaxScale by, int64_t row,
                                                      const TileMemory<Number>& memory, Number* weights) {
  if (first >= last) {
    std::fill_n(weights, kVarlenSplit / TileMemory<Number>::kDepth, Number{});
    return;
  }
  Floats x[kVarlenSplit / kLanes], total = {};
  for (int i = 0; i < kVarlenSplit / kLanes; ++i) {
    x[i] = load(scores + i * kLanes) * by.factor;
    if (kIsCapped) x[i] = soft_cap(x[i], by.cap) * kLog2E;
  }
  const bool is_whole = first <= 0 && last >= kVarlenSplit;
  if (!is_whole) mask(x, first, last);
  Floats largest = x[0];
  for (int i = 1; i < kVarlenSplit / kLanes; ++i) largest = baton::max(x[i], largest);
  if (any(largest > memory.max[row])) raise_max(max_lane(largest), row, memory);
  const float top = memory.max[row];
  for (int i = 0; i < kVarlenSplit / kLanes; ++i) {
    const Floats weight = exp2_nonpositive(x[i] - top);
    x[i] = is_whole ? weight : x[i] == splat(-INFINITY) ? Floats{} : weight;   // NaN stays
    total += x[i];
  }
  store_weights(x, weights);
  store(memory.sums + row * kLanes, load(memory.sums + row * kLanes) + total);
}

// Turn the scores of rows [from, from + num_rows) for the split that begins with token `start` into weights.
template <bool kIsCapped, class Number>
void softmax_rows(const VarlenAttentionArgs& args, const QueryTile& tile, int64_t start, int64_t from, int64_t num_rows,
                 const TileMemory<Number>& memory) {
  const float factor = args.scale * args.layer.k_scale;
  const SoftmaxScale by{kIsCapped ? factor : factor * kLog2E, args.soft_cap};
  const int64_t end = args.lengths[tile.seq] - start;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t own = tile.position + (from + row) / args.group_size + 1 - start;
    const int64_t first = args.window ? own - args.window : 0, behind = std::min(own + args.after, end);
    softmax_row<kIsCapped>(memory.scores + row * kVarlenSplit, first, behind, by, from + row, memory,
                          memory.weights + row * (kVarlenSplit / TileMemory<Number>::kDepth));
  }
}

// Fold the split that begins with token `start` into rows [from, from + num_rows) of a tile.
template <class Number>
void fold_split(const VarlenAttentionArgs& args, const QueryTile& tile, int64_t start, int64_t from, int64_t num_rows,
                const TileMemory<Number>& memory) {
  constexpr int64_t kDepth = TileMemory<Number>::kDepth;
  const int64_t group = args.group_size, window = args.window, inner = memory.inner;
  const int64_t own = tile.position + (from + num_rows - 1) / group + 1;
  const int64_t last = std::min<int64_t>(own + args.after, args.lengths[tile.seq]) - start;   // behind all keys that they see
  const int64_t oldest = window ? tile.position + from / group - window + 1 - start : 0;
  if (last <= 0 || oldest >= kVarlenSplit) return;
  std::fill_n(memory.scores, num_rows * kVarlenSplit, 0.0f);
  for (int64_t key = 0; key < std::min(kVarlenSplit, last); key += kPanelWidth)
    gemm_panel<Number, Number>({memory.q + from * inner, inner}, {memory.keys + key * inner, kPanelWidth}, inner,
                               {memory.scores + key, kVarlenSplit}, num_rows);
  const auto softmax = args.soft_cap > 0 ? softmax_rows<true, Number> : softmax_rows<false, Number>;
  softmax(args, tile, start, from, num_rows, memory);
  const int64_t num_keys = (std::min(kVarlenSplit, last) + kDepth - 1) / kDepth;
  for (int64_t d = 0; d < memory.width; d += kPanelWidth)
    gemm_panel<Number, Number>({memory.weights, kVarlenSplit / kDepth}, {memory.values + d, memory.width}, num_keys,
                               {memory.out + from * memory.width + d, memory.width}, num_rows);
}

template <class Stored, class Number>
void tile_attention(const VarlenAttentionArgs& args, const QueryTile& tile, float* place) {
  const int64_t dim = args.layer.head_dim, group = args.group_size, window = args.window;
  const auto query_of = [&](int64_t row) {
    return (tile.token + row / group) * args.q_stride + (tile.kv_head * group + row % group) * dim;
  };
  for (int64_t row = 0; row < tile.num_tokens * group; ++row) {
    if (args.is_q_bfloat16) prefetch_row(static_cast<const Bfloat16*>(args.q) + query_of(row), dim);
    else prefetch_row(static_cast<const float*>(args.q) + query_of(row), dim);
  }
  const TileMemory<Number> memory(args, tile, place);
  for (int64_t row = 0; row < memory.num_rows; ++row) {
    const int64_t from = query_of(row);
    auto* to = reinterpret_cast<typename Packing<Number>::Element*>(memory.q + row * memory.inner);
    if (args.is_q_bfloat16) copy_row(static_cast<const Bfloat16*>(args.q) + from, to, dim);
    else copy_row(static_cast<const float*>(args.q) + from, to, dim);
  }
  const int64_t end = std::min<int64_t>(tile.position + tile.num_tokens + args.after, args.lengths[tile.seq]);
  const int64_t begin = window ? std::max<int64_t>(0, tile.position - window + 1) : 0;
  for (int64_t start = begin / kVarlenSplit * kVarlenSplit; start < end; start += kVarlenSplit) {
    read_split<Stored>(args, tile, start, begin, end, memory);
    for (int64_t row = 0; row < memory.num_rows; row += kWorkRows)
      fold_split(args, tile, start, row, std::min(kWorkRows, memory.num_rows - row), memory);
  }
  const int64_t num_heads = args.layer.num_kv_heads * group;
  for (int64_t row = 0; row < memory.num_rows; ++row) {
    float* out = memory.out + row * memory.width;
    const float sum = sum_lanes(load(memory.sums + row * kLanes));
    for (int64_t d = 0; d < dim; ++d) out[d] = sum == 0 ? 0.0f : out[d] / sum * args.layer.v_scale;
    const int64_t at = ((tile.token + row / group) * num_heads + tile.kv_head * group + row % group) * dim;
    store_row(out, dim, args.is_q_bfloat16, args.out, at);
  }
}

// The attention kernel of a build for one tile.
struct TileKernel {
  void (*attention)(const VarlenAttentionArgs&, const QueryTile&, float*);
  int64_t size;   // floats of scratch memory per thread
};

template <class Stored>
TileKernel tile_kernel(const VarlenAttentionArgs& args) {
#if BATON_BFLOAT16_DOT
  if constexpr (!std::is_same_v<Stored, float>)
    if (args.is_q_bfloat16) return {tile_attention<Stored, Pair>, TileMemory<Pair>::size_of(args)};
#endif
  return {tile_attention<Stored, float>, TileMemory<float>::size_of(args)};
}

}  // namespace baton
