// Writes of new K and V to the KV pool, and reads of a sequence's. A cache of 8 bits holds them divided by the
// layer's scales; what is read of it is not yet multiplied by them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "float8.h"
#include "thread_pool.h"
#include "structs.h"

namespace baton {

constexpr int64_t kTokensPerThread = 64;

// Store a row of K or V as numbers that lie `stride` elements apart.
template <class Element>
void write_row(const Element* from, int64_t dim, float, Element* to, int64_t stride) {
  if (stride == 1) std::memcpy(to, from, dim * sizeof *to);
  else
    for (int64_t d = 0; d < dim; ++d) to[d * stride] = from[d];
}

template <class Element, class Format, class = std::enable_if_t<kIsFloat8<Format>>>
void write_row(const Element* from, int64_t dim, float scale, Format* to, int64_t stride) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, dim - d);
    Element piece[kLanes] = {};
    std::copy_n(from + d, n, piece);
    Format rounded[kLanes];
    store(rounded, load(piece) / scale);
    write_row(rounded, n, 1.0f, to + d * stride, stride);
  }
}

template <class Element, class Stored>
void write_token(const KvWriteArgs& args, int64_t token) {
  const KvLayer& layer = args.layer;
  const int64_t dim = layer.head_dim, size = layer.block_size;
  if (args.slots[token] < 0) return;
  const int64_t block = args.slots[token] / size, offset = args.slots[token] % size;
  for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
    const int64_t origin = block * layer.block_stride + head * size * dim;
    const Element* k = static_cast<const Element*>(args.k) + token * args.k_stride + head * dim;
    const Element* v = static_cast<const Element*>(args.v) + token * args.v_stride + head * dim;
    write_row(k, dim, layer.k_scale, static_cast<Stored*>(layer.k) + origin + offset * dim, 1);
    Stored* to = static_cast<Stored*>(layer.v) + origin;
    if (layer.is_v_transposed) write_row(v, dim, layer.v_scale, to + offset, size);
    else write_row(v, dim, layer.v_scale, to + offset * dim, 1);
  }
}

template <class Element, class Stored>
void write_rows(const KvWriteArgs& args) {
  parallel_for(args.num_threads, args.num_tokens, kTokensPerThread,
           [&](int64_t token, int64_t) noexcept { write_token<Element, Stored>(args, token); });
}

template <class Stored, class Read>
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
    copy_row(static_cast<const Stored*>(layer.k) + origin + (begin - start) * dim, static_cast<Read*>(args.k) + to,
             (end - begin) * dim);
    const Stored* from = static_cast<const Stored*>(layer.v) + origin;
    Read* v = static_cast<Read*>(args.v) + to;
    if (layer.is_v_transposed) {
      for (int64_t token = 0; token < end - begin; ++token)
        for (int64_t d = 0; d < dim; ++d) copy_row(from + d * size + begin - start + token, v + token * dim + d, 1);
    } else {
      copy_row(from + (begin - start) * dim, v, (end - begin) * dim);
    }
  });
}

}  // namespace baton
