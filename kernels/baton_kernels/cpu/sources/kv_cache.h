// Writes of new K and V to the KV pool. A cache of 8 bits holds them divided by the layer's scales.
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

}  // namespace baton
