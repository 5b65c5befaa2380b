// Copies of whole rows of K and V into the pool and out of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "helpers.h"

// One layer's part of the pool. The caller's mirror of these structs is cpu_library.py.
struct BatonLayer {
  void* k;                  // K in block 0: [num_kv_heads, block_size, head_dim]
  void* v;                  // V in block 0: like K, or [num_kv_heads, head_dim, block_size]
  int64_t block_stride;     // elements between the blocks
  int64_t num_kv_heads, head_dim, block_size;
  int32_t element_bytes, is_v_transposed;
};

// New tokens, one after another.
struct BatonWrite {
  BatonLayer layer;
  const void* k;            // [num_tokens, num_kv_heads, head_dim]
  const void* v;            // like k
  const int64_t* slots;     // [num_tokens]; negative: nowhere
  int64_t k_stride, v_stride;   // elements between the tokens of k and of v
  int64_t num_tokens, num_threads;
};

// Consecutive tokens of one sequence.
struct BatonRead {
  BatonLayer layer;
  void* k;                  // [num_kv_heads, num_tokens, head_dim]
  void* v;                  // like k
  const int32_t* table;     // the sequence's blocks
  int64_t first;            // position of the first token
  int64_t num_tokens, num_threads;
};

namespace baton {

constexpr int64_t kTokensPerThread = 64;

template <class Element>
void write_token(const BatonWrite& step, int64_t token) {
  const BatonLayer& layer = step.layer;
  const int64_t dim = layer.head_dim, size = layer.block_size;
  if (step.slots[token] < 0) return;
  const int64_t block = step.slots[token] / size, offset = step.slots[token] % size;
  for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
    const int64_t origin = block * layer.block_stride + head * size * dim;
    const Element* k = static_cast<const Element*>(step.k) + token * step.k_stride + head * dim;
    const Element* v = static_cast<const Element*>(step.v) + token * step.v_stride + head * dim;
    std::memcpy(static_cast<Element*>(layer.k) + origin + offset * dim, k, dim * sizeof *k);
    Element* to = static_cast<Element*>(layer.v) + origin;
    if (layer.is_v_transposed)
      for (int64_t d = 0; d < dim; ++d) to[d * size + offset] = v[d];
    else
      std::memcpy(to + offset * dim, v, dim * sizeof *v);
  }
}

template <class Element>
void write_rows(const BatonWrite& step) {
  for_each(step.num_threads, step.num_tokens, kTokensPerThread,
           [&](int64_t token, int64_t) noexcept { write_token<Element>(step, token); });
}

template <class Element>
void read_rows(const BatonRead& step) {
  const BatonLayer& layer = step.layer;
  const int64_t dim = layer.head_dim, size = layer.block_size, last = step.first + step.num_tokens;
  const int64_t first_block = step.first / size, num_blocks = (last + size - 1) / size - first_block;
  const int64_t grain = std::max<int64_t>(1, kTokensPerThread / size);
  for_each(step.num_threads, layer.num_kv_heads * num_blocks, grain, [&](int64_t piece, int64_t) noexcept {
    const int64_t head = piece / num_blocks, index = piece % num_blocks;
    const int64_t start = (first_block + index) * size;
    const int64_t begin = std::max(start, step.first), end = std::min(start + size, last);
    const int64_t origin = step.table[first_block + index] * layer.block_stride + head * size * dim;
    const int64_t to = (head * step.num_tokens + begin - step.first) * dim;
    std::memcpy(static_cast<Element*>(step.k) + to,
                static_cast<const Element*>(layer.k) + origin + (begin - start) * dim,
                (end - begin) * dim * sizeof(Element));
    const Element* from = static_cast<const Element*>(layer.v) + origin;
    Element* v = static_cast<Element*>(step.v) + to;
    if (layer.is_v_transposed) {
      for (int64_t token = 0; token < end - begin; ++token)
        for (int64_t d = 0; d < dim; ++d) v[token * dim + d] = from[d * size + begin - start + token];
    } else {
      std::memcpy(v, from + (begin - start) * dim, (end - begin) * dim * sizeof(Element));
    }
  });
}

}  // namespace baton
