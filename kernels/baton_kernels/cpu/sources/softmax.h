// Softmax of one split of a row's keys, in powers of two and before the division by the sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "vectors.h"

namespace baton {

// The logit, in powers of two, that joins the sum of a query head's weights; minus infinity is none.
template <class Args>
float sink_of(const Args& args, int64_t q_head) {
  return args.sinks ? args.sinks[q_head] * kLog2E : -INFINITY;
}

// Turn one head's scores of n keys into weights in place; return their sum and the largest score.
inline std::pair<float, float> softmax(float* scores, int64_t n, float factor, float cap) {
  const int64_t padded = round_up(n, kLanes);
  std::fill(scores + n, scores + padded, -INFINITY);
  Floats largest = splat(-INFINITY);
  for (int64_t key = 0; key < padded; key += kLanes) {
    Floats x = load(scores + key) * factor;
    if (cap > 0) x = soft_cap(x, cap) * kLog2E;
    store(scores + key, x);
    largest = max(x, largest);
  }
  const float top = max_lane(largest);
  std::fill(scores + n, scores + padded, -INFINITY);
  Floats sum = {};
  for (int64_t key = 0; key < padded; key += kLanes) {
    const Floats weight = exp2_nonpositive(load(scores + key) - top);
    store(scores + key, weight);
    sum += weight;
  }
  return {sum_lanes(sum), top};
}

}  // namespace baton
