// Writes of new K and V to the KV pool, and reads of a sequence's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "thread_pool.h"
#include "structs.h"

namespace baton {

constexpr int64_t kTokensPerThread = 64;

template <class Element>
void write_token(const KvWriteArgs& args, int64_t token) {
  const KvLayer& layer = args.layer;
  const int64_t dim = layer.head_dim, size = layer.block_size;
  if (args.slots[token] < 0) return;
  const int64_t block = args.slots[token] / size, offset = args.slots[token] % size;
  for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
    const int64_t origin = block * layer.block_stride + head * size * dim;
    const Element* k = static_cast<const Element*>(args.k) + token * args.k_stride + head * dim;
    const Element* v = static_cast<const Element*>(args.v) + token * args.v_stride + head * dim;
    std::memcpy(static_cast<Element*>(layer.k) + origin + offset * dim, k, dim * sizeof *k);
    Element* to = static_cast<Element*>(layer.v) + origin;
    if (layer.is_v_transposed)
      for (int64_t d = 0; d < dim; ++d) to[d * size + offset] = v[d];
    else
      std::memcpy(to + offset * dim, v, dim * sizeof *v);
  }
}

template <class Element>
void write_rows(const KvWriteArgs& args) {
  parallel_for(args.num_threads, args.num_tokens, kTokensPerThread,
           [&](int64_t token, int64_t) noexcept { write_token<Element>(args, token); });
}

template <class Element>
void read_rows(const KvReadArgs& args) {
  const KvLayer& layer = args.layer;
  const int64_t dim = layer.head_dim, size = layer.block_size, last = args.first + args.num_tokens;
  const int64_t first_block = args.first / size, num_blocks = (last + size - 1) / size - first_block;
  const int64_t grain = std::max<int64_t>(1, kTokensPerThread / size);
  parallel_for(args.num_threads, layer.num_kv_heads * num_blocks, grain, [&](int64_t piece, int64_t) noexcept {
    const int64_t head = piece / num_blocks, index = piece % num_blocks;
    const int64_t start = (first_block + index) * size;
    const int64_t begin = std::max(start, args.first), end = std::min(start + size, last);
    const int64_t origin = args.table[first_block + index] * layer.block_stride + head * size * dim;
    const int64_t to = (head * args.num_tokens + begin - args.first) * dim;
    std::memcpy(static_cast<Element*>(args.k) + to,
                static_cast<const Element*>(layer.k) + origin + (begin - start) * dim,
                (end - begin) * dim * sizeof(Element));
    const Element* from = static_cast<const Element*>(layer.v) + origin;
    Element* v = static_cast<Element*>(args.v) + to;
    if (layer.is_v_transposed) {
      for (int64_t token = 0; token < end - begin; ++token)
        for (int64_t d = 0; d < dim; ++d) v[token * dim + d] = from[d * size + begin - start + token];
    } else {
      std::memcpy(v, from + (begin - start) * dim, (end - begin) * dim * sizeof(Element));
    }
  });
}

}  // namespace baton
