// Attention of the batch-invariant mode: prompt chunks and single tokens in one way. A query folds its keys
// in splits of kPanel tokens, cut at multiples of kPanel and taken in order, whatever tokens share its step.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "panels.h"
#include "rows.h"

// One layer of one step. The caller's mirror of this struct is cpu_invariant_library.py.
struct BatonAttend {
  BatonLayer layer;            // V as rows of head_dim, like K
  const void* q;               // [num_tokens, num_kv_heads * group_size, head_dim]
  void* out;                   // like q, contiguous
  const int32_t* tables;       // [num_seqs, max_blocks]
  const int32_t* lengths;      // [num_seqs], context lengths
  const int32_t* query_start;  // [num_seqs + 1], rows of q
  int64_t q_stride;            // elements between the rows of q
  int64_t num_seqs, max_blocks, group_size;
  int64_t window;              // 0: all tokens
  int64_t num_threads;
  int32_t is_q_bfloat16;
  float scale;
  float soft_cap;              // 0: none
};

namespace baton {

constexpr int64_t kAttendRows = 96;   // pairs of a token and a query head that share a pass over the keys

// Some query tokens of one sequence with the query heads of one KV head.
struct QueryTile {
  int64_t seq, kv_head;
  int64_t token, position;   // of the first: its row of q, and its place in the sequence
  int64_t num_tokens;
};

inline int64_t tokens_per_tile(const BatonAttend& step) {
  return std::max<int64_t>(1, kAttendRows / step.group_size);
}

inline std::vector<QueryTile> query_tiles(const BatonAttend& step) {
  std::vector<QueryTile> tiles;
  for (int64_t seq = 0; seq < step.num_seqs; ++seq) {
    const int64_t begin = step.query_start[seq], end = step.query_start[seq + 1];
    const int64_t context = step.lengths[seq] - (end - begin);
    for (int64_t token = begin; token < end; token += tokens_per_tile(step))
      for (int64_t head = 0; head < step.layer.num_kv_heads; ++head)
        tiles.push_back(
            {seq, head, token, context + token - begin, std::min(tokens_per_tile(step), end - token)});
  }
  return tiles;
}

// One thread's memory for one tile.
struct TileMemory {
  int64_t dim, width, num_rows;
  float* keys;      // [dim, kPanel]
  float* values;    // [kPanel, width], zeros behind dim
  float* q;         // [num_rows, dim]
  float* weights;   // [num_rows, kPanel]
  float* out;       // [num_rows, width], not divided yet
  float* max;       // [num_rows]
  float* sum;       // [num_rows]

  static int64_t size_of(const BatonAttend& step) {
    const int64_t dim = step.layer.head_dim, width = round_up(dim, kPanel);
    return (dim + width) * kPanel + tokens_per_tile(step) * step.group_size * (dim + width + kPanel + 2);
  }
  TileMemory(const BatonAttend& step, const QueryTile& tile, float* place)
      : dim(step.layer.head_dim), width(round_up(dim, kPanel)), num_rows(tile.num_tokens * step.group_size),
        keys(place), values(keys + dim * kPanel), q(values + width * kPanel), weights(q + num_rows * dim),
        out(weights + num_rows * kPanel), max(out + num_rows * width), sum(max + num_rows) {
    std::fill(values, q, 0.0f);
    std::fill(out, max, 0.0f);
    std::fill_n(max, num_rows, -INFINITY);
    std::fill_n(sum, num_rows, 0.0f);
  }
};

// Tokens [start, start + count) of the sequence; the rest of the split is zeros.
template <class Stored>
__attribute__((noinline)) void read_split(const BatonAttend& step, const QueryTile& tile, int64_t start,
                                          int64_t count, const TileMemory& memory) {
  const BatonLayer& layer = step.layer;
  const int64_t dim = memory.dim, size = layer.block_size;
  if (count < kPanel) {
    std::fill_n(memory.keys, dim * kPanel, 0.0f);
    std::fill_n(memory.values + count * memory.width, (kPanel - count) * memory.width, 0.0f);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = start + i, block = step.tables[tile.seq * step.max_blocks + position / size];
    const int64_t row = block * layer.block_stride + (tile.kv_head * size + position % size) * dim;
    const Stored* key = static_cast<const Stored*>(layer.k) + row;
    for (int64_t d = 0; d < dim; ++d) memory.keys[d * kPanel + i] = widen(key[d]);
    copy_row(static_cast<const Stored*>(layer.v) + row, memory.values + i * memory.width, dim);
  }
}

// Turn a row's scores into weights, of the keys [first, last) alone, and fold them into its maximum and sum.
__attribute__((noinline)) inline void soften_row(float* scores, int64_t first, int64_t last, float factor,
                                                 float cap, float& max, float& sum, float* out,
                                                 int64_t width) {
  if (first >= last) {
    std::fill_n(scores, kPanel, 0.0f);
    return;
  }
  Ints lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  Floats x[kPanelVectors], largest = splat(max);
  for (int i = 0; i < kPanelVectors; ++i) {
    x[i] = load(scores + i * kLanes) * factor;
    if (cap > 0) x[i] = soft_cap(x[i], cap) * kLog2E;
    const Ints keys = lanes + i * kLanes;
    x[i] = (keys >= int32_t(first)) & (keys < int32_t(last)) ? x[i] : splat(-INFINITY);
    largest = baton::max(x[i], largest);
  }
  const float top = max_lane(largest);
  Floats total = {};
  for (int i = 0; i < kPanelVectors; ++i) {
    const Floats weights = x[i] > -INFINITY ? exp2_nonpositive(x[i] - top) : Floats{};
    store(scores + i * kLanes, weights);
    total += weights;
  }
  const float shrink = exp2_nonpositive(splat(max - top))[0];
  max = top;
  sum = sum * shrink + sum_lanes(total);
  for (int64_t d = 0; d < width; ++d) out[d] *= shrink;
}

inline void attend_tile(const BatonAttend& step, const QueryTile& tile, float* place) {
  const TileMemory memory(step, tile, place);
  const int64_t dim = memory.dim, width = memory.width, group = step.group_size, num_rows = memory.num_rows;
  const int64_t num_heads = step.layer.num_kv_heads * group, window = step.window;
  for (int64_t token = 0; token < tile.num_tokens; ++token) {
    const int64_t from = (tile.token + token) * step.q_stride + tile.kv_head * group * dim;
    load_row(step.q, from, group * dim, step.is_q_bfloat16, memory.q + token * group * dim);
  }
  const float factor = step.soft_cap > 0 ? step.scale : step.scale * kLog2E;
  const int64_t end = tile.position + tile.num_tokens;
  const int64_t begin = window ? std::max<int64_t>(0, tile.position - window + 1) : 0;
  for (int64_t start = begin / kPanel * kPanel; start < end; start += kPanel) {
    const auto read = step.layer.element_bytes == 4 ? read_split<float> : read_split<Bfloat16>;
    read(step, tile, start, std::min<int64_t>(kPanel, end - start), memory);
    std::fill_n(memory.weights, num_rows * kPanel, 0.0f);
    fold_panel<float>({memory.q, dim}, {memory.keys, kPanel}, dim, {memory.weights, kPanel}, num_rows);
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t position = tile.position + row / group;
      const int64_t first = window ? std::max<int64_t>(0, position - window + 1 - start) : 0;
      soften_row(memory.weights + row * kPanel, first, std::min<int64_t>(kPanel, position + 1 - start),
                 factor, step.soft_cap, memory.max[row], memory.sum[row], memory.out + row * width, width);
    }
    for (int64_t d = 0; d < width; d += kPanel)
      fold_panel<float>({memory.weights, kPanel}, {memory.values + d, width}, kPanel, {memory.out + d, width},
                        num_rows);
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    float* out = memory.out + row * width;
    for (int64_t d = 0; d < dim; ++d) out[d] = memory.sum[row] > 0 ? out[d] / memory.sum[row] : 0.0f;
    const int64_t at = ((tile.token + row / group) * num_heads + tile.kv_head * group + row % group) * dim;
    store_row(out, dim, step.is_q_bfloat16, step.out, at);
  }
}

}  // namespace baton
