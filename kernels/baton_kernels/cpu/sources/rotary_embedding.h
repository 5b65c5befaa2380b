// Rotation of queries and keys in the half-split form, with the write to the cache: each number of a token is
// read once, computed in float32 and rounded once.
#pragma once

#include <cmath>

#include "kv_cache.h"
#include "vectors.h"
#include "structs.h"

namespace baton {

// The angles of one token.
template <class Element>
struct Angles {
  const Element* cos;
  const Element* sin;
  int64_t half;             // dimension i pairs with dimension half + i
};

template <class Element>
void rotate_head(const Element* x, int64_t dim, Angles<Element> by, Element* out) {
  const int64_t half = by.half;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats first = load(x + i), second = load(x + half + i);
    store(out + i, first * load(by.cos + i) - second * load(by.sin + i));
    store(out + half + i, second * load(by.cos + half + i) + first * load(by.sin + half + i));
  }
  for (; i < half; ++i) {
    const float first = widen(x[i]), second = widen(x[half + i]);
    put(out + i, first * widen(by.cos[i]) - second * widen(by.sin[i]));
    put(out + half + i, second * widen(by.cos[half + i]) + first * widen(by.sin[half + i]));
  }
  copy_row(x + 2 * half, out + 2 * half, dim - 2 * half);
}

template <class Element, class Stored>
void rotate_token(const RotateArgs& args, int64_t token) {
  const KvLayer& layer = args.write.layer;
  const int64_t dim = layer.head_dim, at = token * args.angle_stride;
  const Angles<Element> by{static_cast<const Element*>(args.cos) + at,
                           static_cast<const Element*>(args.sin) + at, args.rotary_dim / 2};
  const auto rotate = [&](const void* from, int64_t stride, int64_t num_heads, void* to) {
    const Element* x = static_cast<const Element*>(from) + token * stride;
    Element* out = static_cast<Element*>(to) + token * num_heads * dim;
    for (int64_t head = 0; head < num_heads; ++head) rotate_head(x + head * dim, dim, by, out + head * dim);
  };
  rotate(args.q, args.q_stride, args.num_q_heads, args.q_out);
  rotate(args.k, args.k_stride, layer.num_kv_heads, args.k_out);
  write_token<Element, Stored>(args.write, token);
}

template <class Element, class Stored>
void rotate_rows(const RotateArgs& args) {
  parallel_for(args.write.num_threads, args.write.num_tokens, kTokensPerThread,
           [&](int64_t token, int64_t) noexcept { rotate_token<Element, Stored>(args, token); });
}

template <class Element>
void angles_of_token(const RotaryAnglesArgs& args, int64_t token) {
  const float position = static_cast<float>(args.positions[token]);
  const int64_t half = args.rotary_dim / 2, at = token * args.rotary_dim;
  Element* cos = static_cast<Element*>(args.cos) + at;
  Element* sin = static_cast<Element*>(args.sin) + at;
  for (int64_t i = 0; i < half; ++i) {
    const float angle = position * args.inv_freq[i];
    put(cos + i, std::cos(angle) * args.magnitude);
    put(sin + i, std::sin(angle) * args.magnitude);
    cos[half + i] = cos[i];
    sin[half + i] = sin[i];
  }
}

inline void rotary_angles(const RotaryAnglesArgs& args) {
  const auto angles_of = args.is_bfloat16 ? angles_of_token<Bfloat16> : angles_of_token<float>;
  parallel_for(args.num_threads, args.num_tokens, kTokensPerThread,
               [&](int64_t token, int64_t) noexcept { angles_of(args, token); });
}

}  // namespace baton
