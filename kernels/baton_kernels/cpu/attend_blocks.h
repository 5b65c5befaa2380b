// Attention over the cache for slices of any length, in one way: a query folds its keys in splits of kSplit tokens,
// cut at multiples of kSplit and taken in order, whatever tokens share its step. Prompt chunks go through it, and
// in the batch-invariant mode all slices. With AVX512-BF16 products of bfloat16 are taken in pairs; arithmetic is
// float32 otherwise.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "panels.h"
#include "rows.h"

// One layer of one step. The caller's mirror of this struct is cpu_library.py.
struct BatonAttend {
  BatonLayer layer;            // V as rows of head_dim, like K
  const void* q;               // [num_tokens, num_kv_heads * group_size, head_dim]
  void* out;                   // like q, contiguous
  const int32_t* tables;       // [num_seqs, blocks], rows table_stride apart
  const int32_t* lengths;      // [num_seqs], context lengths
  const int32_t* query_start;  // [num_seqs + 1], rows of q
  int64_t q_stride;            // elements between the rows of q
  int64_t num_seqs, table_stride, group_size;
  int64_t window;              // 0: all tokens
  int64_t least_tokens;        // of a slice that is taken; those of fewer are left alone
  int64_t num_threads;
  int32_t is_q_bfloat16;
  float scale;
  float soft_cap;              // 0: none
};

namespace baton {

constexpr int64_t kSplit = 64;
constexpr int64_t kAttendRows = 384;     // pairs of a token and a query head that share a pass over the keys
constexpr int64_t kWorkRows = 48;      // of them whose scores are in work, so that they stay in the first cache

// Some query tokens of one sequence with the query heads of one KV head.
struct QueryTile {
  int64_t seq, kv_head;
  int64_t token, position;   // of the first: its row of q, and its place in the sequence
  int64_t num_tokens;
};

inline int64_t tokens_per_tile(const BatonAttend& step) {
  return std::max<int64_t>(1, kAttendRows / step.group_size);
}

// The later tiles of a sequence see more keys, so they come first: no thread is left with a large one at the end.
inline std::vector<QueryTile> query_tiles(const BatonAttend& step) {
  std::vector<QueryTile> tiles;
  for (int64_t seq = 0; seq < step.num_seqs; ++seq) {
    const int64_t begin = step.query_start[seq], end = step.query_start[seq + 1];
    const int64_t context = step.lengths[seq] - (end - begin);
    if (end - begin < step.least_tokens) continue;
    for (int64_t token = begin; token < end; token += tokens_per_tile(step))
      for (int64_t head = 0; head < step.layer.num_kv_heads; ++head)
        tiles.push_back(
            {seq, head, token, context + token - begin, std::min(tokens_per_tile(step), end - token)});
  }
  std::reverse(tiles.begin(), tiles.end());
  return tiles;
}

// One thread's memory for one tile, as floats.
template <class Number>
struct TileMemory {
  using Element = typename Inner<Number>::Element;
  static constexpr int64_t kDepth = Inner<Number>::kDepth;

  int64_t dim, width, inner, num_rows;
  Number* keys;       // [kSplit / kPanel, inner, kPanel], zeros behind dim
  Number* values;     // [kSplit / kDepth, width], zeros behind dim
  Number* q;          // [num_rows, inner], zeros behind dim
  float* scores;      // [kWorkRows, kSplit]
  Number* weights;    // [kWorkRows, kSplit / kDepth]
  float* out;         // [num_rows, width], not divided yet
  float* max;         // [num_rows]
  float* sums;        // [num_rows, kLanes], of the weights: their sum in parts

  static int64_t size_of(const BatonAttend& step) {
    const int64_t dim = step.layer.head_dim, width = round_up(dim, kPanel);
    const int64_t inner = round_up(dim, kDepth) / kDepth, rows = tokens_per_tile(step) * step.group_size;
    return kSplit * (inner + width / kDepth) + kWorkRows * (kSplit + kSplit / kDepth) +
           rows * (inner + width + 1 + kLanes);
  }
  TileMemory(const BatonAttend& step, const QueryTile& tile, float* place)
      : dim(step.layer.head_dim), width(round_up(dim, kPanel)), inner(round_up(dim, kDepth) / kDepth),
        num_rows(tile.num_tokens * step.group_size), keys(reinterpret_cast<Number*>(place)),
        values(keys + kSplit * inner), q(values + kSplit / kDepth * width),
        scores(reinterpret_cast<float*>(q + num_rows * inner)),
        weights(reinterpret_cast<Number*>(scores + kWorkRows * kSplit)),
        out(reinterpret_cast<float*>(weights + kWorkRows * kSplit / kDepth)), max(out + num_rows * width),
        sums(max + num_rows) {
    std::fill(place, scores, 0.0f);
    std::fill(out, max, 0.0f);
    std::fill_n(max, num_rows, -INFINITY);
    std::fill_n(sums, num_rows * kLanes, 0.0f);
  }
};

inline void interleave(const float* from, int64_t n, int64_t, float* to) { copy_row(from, to, n); }

// One number of each of the pairs of a row: the first for place 0, the second for 1.
inline void interleave(const Bfloat16* from, int64_t n, int64_t place, Pair* to) {
  Bfloat16* half = reinterpret_cast<Bfloat16*>(to) + place;
  for (int64_t i = 0; i < n; ++i) half[2 * i] = from[i];
}

inline void interleave(const Bfloat16* from, int64_t n, int64_t, float* to) { copy_row(from, to, n); }

// Numbers of a key, one for each row of a panel.
inline void scatter(const float* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i * kPanel] = from[i];
}

inline void scatter(const Bfloat16* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i * kPanel] = widen(from[i]);
}

inline void scatter(const Bfloat16* from, int64_t n, Pair* to) {
  for (int64_t i = 0; i + 2 <= n; i += 2) to[i / 2 * kPanel] = {from[i], from[i + 1]};
  if (n % 2) to[n / 2 * kPanel] = {from[n - 1], 0};
}

// Tokens [begin, end) of the sequence, those of them in the split that begins with token `start`; the rest of it is
// zeros.
template <class Stored, class Number>
__attribute__((noinline)) void read_split(const BatonAttend& step, const QueryTile& tile, int64_t start,
                                          int64_t begin, int64_t end, const TileMemory<Number>& memory) {
  constexpr int64_t kDepth = TileMemory<Number>::kDepth;
  const BatonLayer& layer = step.layer;
  const int64_t dim = memory.dim, size = layer.block_size;
  const int64_t first = std::max(start, begin), last = std::min(start + kSplit, end);
  if (last - first < kSplit) std::fill(memory.keys, memory.q, Number{});
  for (int64_t position = first; position < last; ++position) {
    const int64_t i = position - start, block = step.tables[tile.seq * step.table_stride + position / size];
    const int64_t row = block * layer.block_stride + (tile.kv_head * size + position % size) * dim;
    scatter(static_cast<const Stored*>(layer.k) + row, dim,
            memory.keys + i / kPanel * kPanel * memory.inner + i % kPanel);
    interleave(static_cast<const Stored*>(layer.v) + row, dim, i % kDepth,
               memory.values + i / kDepth * memory.width);
  }
}

inline void store_weights(const Floats* weights, float* to) {
  for (int i = 0; i < kSplit / kLanes; ++i) store(to + i * kLanes, weights[i]);
}

#if BATON_BFLOAT16_DOT
inline void store_weights(const Floats* weights, Pair* to) {
  for (int i = 0; i < kSplit / kLanes; i += 2)
    _mm512_storeu_si512(to + i / 2 * kLanes,
                        (__m512i)_mm512_cvtne2ps_pbh((__m512)weights[i + 1], (__m512)weights[i]));
}
#endif

// Set the scores outside of the keys [first, last) to minus infinity.
inline void mask(Floats* scores, int64_t first, int64_t last) {
  Ints lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  for (int i = 0; i < kSplit / kLanes; ++i) {
    const Ints keys = lanes + i * kLanes;
    scores[i] = (keys >= int32_t(first)) & (keys < int32_t(last)) ? scores[i] : splat(-INFINITY);
  }
}

// What a row's scores become weights with.
struct Softening {
  float factor, cap;
};

// Let a row's weights be those by a new largest score.
template <class Number>
void raise_max(float top, int64_t row, const TileMemory<Number>& memory) {
  const float shrink = exp2_nonpositive(splat(memory.max[row] - top))[0];
  float *out = memory.out + row * memory.width, *sums = memory.sums + row * kLanes;
  for (int64_t d = 0; d < memory.width; d += kLanes) store(out + d, load(out + d) * shrink);
  store(sums, load(sums) * shrink);
  memory.max[row] = top;
}

// Turn a row's scores into weights, of the keys [first, last) alone, and fold them into its maximum and sums.
template <bool kIsCapped, class Number>
__attribute__((always_inline)) inline void soften_row(const float* scores, int64_t first, int64_t last,
                                                      Softening by, int64_t row,
                                                      const TileMemory<Number>& memory, Number* weights) {
  if (first >= last) {
    std::fill_n(weights, kSplit / TileMemory<Number>::kDepth, Number{});
    return;
  }
  Floats x[kSplit / kLanes], total = {};
  for (int i = 0; i < kSplit / kLanes; ++i) {
    x[i] = load(scores + i * kLanes) * by.factor;
    if (kIsCapped) x[i] = soft_cap(x[i], by.cap) * kLog2E;
  }
  const bool is_whole = first <= 0 && last >= kSplit;
  if (!is_whole) mask(x, first, last);
  Floats largest = x[0];
  for (int i = 1; i < kSplit / kLanes; ++i) largest = baton::max(x[i], largest);
  if (any(largest > memory.max[row])) raise_max(max_lane(largest), row, memory);
  const float top = memory.max[row];
  for (int i = 0; i < kSplit / kLanes; ++i) {
    const Floats weight = exp2_nonpositive(x[i] - top);
    x[i] = is_whole ? weight : x[i] == splat(-INFINITY) ? Floats{} : weight;   // NaN stays
    total += x[i];
  }
  store_weights(x, weights);
  store(memory.sums + row * kLanes, load(memory.sums + row * kLanes) + total);
}

// Turn the scores of rows [from, from + num_rows) for the split that begins with token `start` into weights.
template <bool kIsCapped, class Number>
void soften_rows(const BatonAttend& step, const QueryTile& tile, int64_t start, int64_t from, int64_t num_rows,
                 const TileMemory<Number>& memory) {
  const Softening by{kIsCapped ? step.scale : step.scale * kLog2E, step.soft_cap};
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t behind = tile.position + (from + row) / step.group_size + 1 - start;
    const int64_t first = step.window ? behind - step.window : 0;
    soften_row<kIsCapped>(memory.scores + row * kSplit, first, behind, by, from + row, memory,
                          memory.weights + row * (kSplit / TileMemory<Number>::kDepth));
  }
}

// Fold the split that begins with token `start` into rows [from, from + num_rows) of a tile.
template <class Number>
void fold_split(const BatonAttend& step, const QueryTile& tile, int64_t start, int64_t from, int64_t num_rows,
                const TileMemory<Number>& memory) {
  constexpr int64_t kDepth = TileMemory<Number>::kDepth;
  const int64_t group = step.group_size, window = step.window, inner = memory.inner;
  const int64_t last = tile.position + (from + num_rows - 1) / group + 1 - start;   // behind all that they see
  const int64_t oldest = window ? tile.position + from / group - window + 1 - start : 0;
  if (last <= 0 || oldest >= kSplit) return;
  std::fill_n(memory.scores, num_rows * kSplit, 0.0f);
  for (int64_t key = 0; key < std::min(kSplit, last); key += kPanel)
    fold_panel<Number, Number>({memory.q + from * inner, inner}, {memory.keys + key * inner, kPanel}, inner,
                               {memory.scores + key, kSplit}, num_rows);
  const auto soften = step.soft_cap > 0 ? soften_rows<true, Number> : soften_rows<false, Number>;
  soften(step, tile, start, from, num_rows, memory);
  const int64_t num_keys = (std::min(kSplit, last) + kDepth - 1) / kDepth;
  for (int64_t d = 0; d < memory.width; d += kPanel)
    fold_panel<Number, Number>({memory.weights, kSplit / kDepth}, {memory.values + d, memory.width}, num_keys,
                               {memory.out + from * memory.width + d, memory.width}, num_rows);
}

template <class Stored, class Number>
void attend_tile(const BatonAttend& step, const QueryTile& tile, float* place) {
  const TileMemory<Number> memory(step, tile, place);
  const int64_t dim = memory.dim, group = step.group_size, window = step.window;
  for (int64_t row = 0; row < memory.num_rows; ++row) {
    const int64_t from = (tile.token + row / group) * step.q_stride + (tile.kv_head * group + row % group) * dim;
    auto* to = reinterpret_cast<typename Inner<Number>::Element*>(memory.q + row * memory.inner);
    if (step.is_q_bfloat16) copy_row(static_cast<const Bfloat16*>(step.q) + from, to, dim);
    else copy_row(static_cast<const float*>(step.q) + from, to, dim);
  }
  const int64_t end = tile.position + tile.num_tokens;
  const int64_t begin = window ? std::max<int64_t>(0, tile.position - window + 1) : 0;
  for (int64_t start = begin / kSplit * kSplit; start < end; start += kSplit) {
    read_split<Stored>(step, tile, start, begin, end, memory);
    for (int64_t row = 0; row < memory.num_rows; row += kWorkRows)
      fold_split(step, tile, start, row, std::min(kWorkRows, memory.num_rows - row), memory);
  }
  const int64_t num_heads = step.layer.num_kv_heads * group;
  for (int64_t row = 0; row < memory.num_rows; ++row) {
    float* out = memory.out + row * memory.width;
    const float sum = sum_lanes(load(memory.sums + row * kLanes));
    for (int64_t d = 0; d < dim; ++d) out[d] = sum == 0 ? 0.0f : out[d] / sum;
    const int64_t at = ((tile.token + row / group) * num_heads + tile.kv_head * group + row % group) * dim;
    store_row(out, dim, step.is_q_bfloat16, step.out, at);
  }
}

// How a build attends over one tile.
struct TileKernel {
  void (*attend)(const BatonAttend&, const QueryTile&, float*);
  int64_t size;   // of a thread's memory, in floats
};

inline TileKernel tile_kernel(const BatonAttend& step) {
  if (step.layer.element_bytes == 4) return {attend_tile<float, float>, TileMemory<float>::size_of(step)};
#if BATON_BFLOAT16_DOT
  if (step.is_q_bfloat16) return {attend_tile<Bfloat16, Pair>, TileMemory<Pair>::size_of(step)};
#endif
  return {attend_tile<Bfloat16, float>, TileMemory<float>::size_of(step)};
}

}  // namespace baton
