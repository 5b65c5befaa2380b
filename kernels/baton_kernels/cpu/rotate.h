// Rotation of queries and keys in the half-split form, with the write to the cache: each number of a token is
// read once, computed in float32 and rounded once.
#pragma once

#include "rows.h"
#include "vectors.h"

// The caller's mirror of this struct is cpu_library.py.
struct BatonRotate {
  BatonWrite write;         // its k is that of this struct's k_out
  const void* q;            // [num_tokens, num_q_heads, head_dim]
  const void* k;            // [num_tokens, num_kv_heads, head_dim]
  const void* cos;          // [num_tokens, rotary_dim]
  const void* sin;          // like cos
  void* q_out;              // like q, contiguous
  void* k_out;              // like k, contiguous
  int64_t q_stride, k_stride;   // elements between the tokens of q and of k
  int64_t angle_stride;     // elements between the tokens of cos and of sin
  int64_t num_q_heads, rotary_dim;
};

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

template <class Element>
void rotate_token(const BatonRotate& step, int64_t token) {
  const BatonLayer& layer = step.write.layer;
  const int64_t dim = layer.head_dim, at = token * step.angle_stride;
  const Angles<Element> by{static_cast<const Element*>(step.cos) + at,
                           static_cast<const Element*>(step.sin) + at, step.rotary_dim / 2};
  const auto rotate = [&](const void* from, int64_t stride, int64_t num_heads, void* to) {
    const Element* x = static_cast<const Element*>(from) + token * stride;
    Element* out = static_cast<Element*>(to) + token * num_heads * dim;
    for (int64_t head = 0; head < num_heads; ++head) rotate_head(x + head * dim, dim, by, out + head * dim);
  };
  rotate(step.q, step.q_stride, step.num_q_heads, step.q_out);
  rotate(step.k, step.k_stride, layer.num_kv_heads, step.k_out);
  write_token<Element>(step.write, token);
}

template <class Element>
void rotate_rows(const BatonRotate& step) {
  for_each(step.write.num_threads, step.write.num_tokens, kTokensPerThread,
           [&](int64_t token, int64_t) noexcept { rotate_token<Element>(step, token); });
}

}  // namespace baton
