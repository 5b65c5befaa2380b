// What the caller hands over, and how the work on it is divided.
#pragma once

#include <algorithm>
#include <cmath>

#include "rows.h"
#include "vectors.h"

// One layer of one step: its slices of one token each. The caller's mirror of this struct is cpu_library.py.
struct BatonDecode {
  BatonLayer layer;
  const void* q;            // [num_tokens, num_kv_heads * group_size, head_dim]
  void* out;                // like q, contiguous
  const int32_t* tables;    // [num_seqs, blocks], rows table_stride apart
  const int32_t* lengths;   // [num_seqs], context lengths
  const int32_t* tokens;    // [num_decodes], rows of q
  const int32_t* seqs;      // [num_decodes], rows of tables and lengths
  int64_t q_stride;         // elements between the rows of q
  int64_t num_decodes, table_stride, group_size;
  int64_t window;           // 0: all tokens
  int64_t num_threads;
  int32_t is_q_bfloat16;
  float scale;
  float soft_cap;           // 0: none
};

namespace baton {

constexpr int64_t kPartTokens = 256;

// One KV head of one sequence with its query heads.
struct Row {
  const BatonDecode& step;
  int64_t decode, kv_head;

  int64_t dim() const { return step.layer.head_dim; }
  int64_t block_size() const { return step.layer.block_size; }

  int64_t length() const { return step.lengths[step.seqs[decode]]; }
  int64_t first() const { return step.window ? std::max<int64_t>(0, length() - step.window) : 0; }
  int64_t num_parts() const {
    return length() > 0 ? (length() - 1) / kPartTokens - first() / kPartTokens + 1 : 0;
  }
  int64_t block(int64_t position) const {
    return step.tables[step.seqs[decode] * step.table_stride + position / block_size()];
  }
  // The place of this head in the block that holds `position`, in elements of the pool.
  int64_t origin(int64_t position) const {
    return block(position) * step.layer.block_stride + kv_head * block_size() * dim();
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
        step.tokens[decode] * step.q_stride + (kv_head * step.group_size + head) * dim();
    if (step.is_q_bfloat16) copy_row(static_cast<const Bfloat16*>(step.q) + from, to, dim());
    else copy_row(static_cast<const float*>(step.q) + from, to, dim());
  }
};

// Tokens [begin, end) of a row. Parts are cut at multiples of kPartTokens, so that they depend on the
// sequence alone and its numbers do not change with the company it is in.
struct Part {
  Row row;
  int64_t begin, end;

  Part(Row row, int64_t index) : row(row) {
    const int64_t start = (row.first() / kPartTokens + index) * kPartTokens;
    begin = std::max(start, row.first());
    end = std::min(start + kPartTokens, row.length());
  }
};

// Softmax over one part, not divided yet, in powers of two.
struct PartialResult {
  float* max;   // [group_size]
  float* sum;   // [group_size]
  float* out;   // [group_size, width]
  int64_t width;   // head_dim in whole vectors of the cache's numbers

  static int64_t width_of(const BatonDecode& step) {
    return round_up(step.layer.head_dim, 64 / step.layer.element_bytes);
  }
  static int64_t size_of(const BatonDecode& step) { return step.group_size * (width_of(step) + 2); }
  PartialResult(const BatonDecode& step, float* place)
      : max(place), sum(max + step.group_size), out(sum + step.group_size), width(width_of(step)) {}
};

// A row in its type; zeros for no row.
template <class Element>
void put_row(const float* row, int64_t n, Element* to) {
  if (row) copy_row(row, to, n);
  else std::fill_n(to, n, Element{});
}

// Join the parts of a row by their maxima and divide. Destroys the first part. Without parts the result is 0.
inline void merge(const Row& row, float* partials, int64_t num_parts) {
  const BatonDecode& step = row.step;
  const int64_t size = PartialResult::size_of(step), num_heads = step.layer.num_kv_heads * step.group_size;
  const PartialResult joined(step, partials);
  for (int64_t head = 0; head < step.group_size; ++head) {
    float largest = -INFINITY, sum = 0;
    for (int64_t part = 0; part < num_parts; ++part)
      largest = std::max(largest, partials[part * size + head]);
    float* out = joined.out + head * joined.width;
    for (int64_t index = 0; index < num_parts; ++index) {
      const PartialResult part(step, partials + index * size);
      const float weight = std::exp2(part.max[head] - largest);
      sum += weight * part.sum[head];
      for (int64_t d = 0; d < joined.width; d += kLanes) {
        const Floats before = index ? load(out + d) : Floats{};
        store(out + d, before + weight * load(part.out + head * joined.width + d));
      }
    }
    for (int64_t d = 0; d < joined.width && num_parts; d += kLanes) store(out + d, load(out + d) / sum);
    const int64_t at =
        (step.tokens[row.decode] * num_heads + row.kv_head * step.group_size + head) * row.dim();
    const float* result = num_parts ? out : nullptr;
    if (step.is_q_bfloat16) put_row(result, row.dim(), static_cast<Bfloat16*>(step.out) + at);
    else put_row(result, row.dim(), static_cast<float*>(step.out) + at);
  }
}

}  // namespace baton
