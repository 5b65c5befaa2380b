// Decode attention, split over the keys of each sequence: the work items and the merge of their partial results.
#pragma once

#include <algorithm>
#include <cmath>

#include "kv_cache.h"
#include "softmax.h"
#include "vectors.h"
#include "structs.h"

namespace baton {

constexpr int64_t kSplitTokens = 256;

// A row of work: one KV head of one sequence with its query heads.
struct Row {
  const DecodeAttentionArgs& args;
  int64_t decode, kv_head;

  int64_t dim() const { return args.layer.head_dim; }
  int64_t block_size() const { return args.layer.block_size; }

  int64_t length() const { return args.lengths[args.seqs[decode]]; }
  int64_t first() const { return args.window ? std::max<int64_t>(0, length() - args.window) : 0; }
  int64_t num_splits() const {
    return length() > 0 ? (length() - 1) / kSplitTokens - first() / kSplitTokens + 1 : 0;
  }
  int64_t block(int64_t position) const {
    return args.tables[args.seqs[decode] * args.table_stride + position / block_size()];
  }
  // The place of this head in the block that holds `position`, in elements of the pool.
  int64_t origin(int64_t position) const {
    return block(position) * args.layer.block_stride + kv_head * block_size() * dim();
  }
  // The row of `position` in K or V, which begins at `base`.
  template <class Element>
  const Element* cached(const void* base, int64_t position) const {
    return static_cast<const Element*>(base) + origin(position) + position % block_size() * dim();
  }
  // The query of one of this KV head's query heads.
  template <class Element>
  void copy_query(int64_t head, Element* to) const {
    const int64_t from =
        args.tokens[decode] * args.q_stride + (kv_head * args.group_size + head) * dim();
    if (args.is_q_bfloat16) copy_row(static_cast<const Bfloat16*>(args.q) + from, to, dim());
    else copy_row(static_cast<const float*>(args.q) + from, to, dim());
  }
};

// Tokens [begin, end) of a row. Splits are cut at multiples of kSplitTokens, so that they depend on the
// sequence alone: its numbers are the same in any batch.
struct Split {
  Row row;
  int64_t begin, end;

  Split(Row row, int64_t index) : row(row) {
    const int64_t start = (row.first() / kSplitTokens + index) * kSplitTokens;
    begin = std::max(start, row.first());
    end = std::min(start + kSplitTokens, row.length());
  }
};

// Softmax over one split in powers of two, before the division by the sum.
struct PartialResult {
  float* max;   // [group_size]
  float* sum;   // [group_size]
  float* out;   // [group_size, width]
  int64_t width;   // head_dim in whole vectors of the numbers that are multiplied

  static int64_t width_of(const DecodeAttentionArgs& args) {
    return round_up(args.layer.head_dim, args.layer.dtype == kFloat32 ? 16 : 32);
  }
  static int64_t size_of(const DecodeAttentionArgs& args) { return args.group_size * (width_of(args) + 2); }
  PartialResult(const DecodeAttentionArgs& args, float* place)
      : max(place), sum(max + args.group_size), out(sum + args.group_size), width(width_of(args)) {}
};

// The factor of scores, for which K is as the cache has it.
template <class Args>
float score_scale(const Args& args) {
  return args.scale * args.layer.k_scale;
}

// Store a row in its dtype; zeros for a null row.
template <class Element>
void put_row(const float* row, int64_t n, Element* to) {
  if (row) copy_row(row, to, n);
  else std::fill_n(to, n, Element{});
}

// Merge the splits of a row by their maxima, divide by the sum, in which a sink comes first, and multiply by the scale
// of V. Overwrites the first split. Without splits the result is 0.
inline void merge(const Row& row, float* partials, int64_t num_splits) {
  const DecodeAttentionArgs& args = row.args;
  const int64_t size = PartialResult::size_of(args), num_heads = args.layer.num_kv_heads * args.group_size;
  const PartialResult joined(args, partials);
  for (int64_t head = 0; head < args.group_size; ++head) {
    const float sink = sink_of(args, row.kv_head * args.group_size + head);
    float largest = sink, sum = 0;
    for (int64_t split = 0; split < num_splits; ++split)
      largest = std::max(largest, partials[split * size + head]);
    if (sink != -INFINITY) sum = std::exp2(sink - largest);
    float* out = joined.out + head * joined.width;
    for (int64_t index = 0; index < num_splits; ++index) {
      const PartialResult split(args, partials + index * size);
      const float weight = std::exp2(split.max[head] - largest);
      sum += weight * split.sum[head];
      for (int64_t d = 0; d < joined.width; d += kLanes) {
        const Floats before = index ? load(out + d) : Floats{};
        store(out + d, before + weight * load(split.out + head * joined.width + d));
      }
    }
    for (int64_t d = 0; d < joined.width && num_splits; d += kLanes) store(out + d, load(out + d) / sum * args.layer.v_scale);
    const int64_t at =
        (args.tokens[row.decode] * num_heads + row.kv_head * args.group_size + head) * row.dim();
    const float* result = num_splits ? out : nullptr;
    if (args.is_q_bfloat16) put_row(result, row.dim(), static_cast<Bfloat16*>(args.out) + at);
    else put_row(result, row.dim(), static_cast<float*>(args.out) + at);
  }
}

}  // namespace baton
