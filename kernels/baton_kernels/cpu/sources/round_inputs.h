// Rows rounded to 8-bit floats, as numbers that bfloat16 holds, with one scale for each group of neighbours: the largest
// magnitude becomes the largest code, or the scale is given. A group with NaN is NaN as a whole, and so is one with an
// infinity, unless its scale is given: then what is too large saturates.
#pragma once

#include <algorithm>
#include <cmath>

#include "float8.h"
#include "structs.h"
#include "thread_pool.h"

namespace baton {

// Return the largest magnitude of `n` numbers; NaN if one is not finite.
template <class Number>
float largest_or_nan(const Number* x, int64_t n) {
  Floats largest{}, nothing{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats value = load(x + i), size = (Floats)((Ints)value & 0x7fffffff);
    largest = size > largest ? size : largest;
    nothing += value - value;
  }
  float most = 0, lost = 0;
  for (int lane = 0; lane < kLanes; ++lane) most = std::max(most, largest[lane]), lost += nothing[lane];
  for (; i < n; ++i) most = std::max(most, std::fabs(widen(x[i]))), lost += widen(x[i]) - widen(x[i]);
  return most + lost;
}

template <class Number>
void round_group(const Number* x, int64_t n, float scale, Number* to) {
  alignas(64) E4m3 codes[kLanes];
  alignas(64) float values[kLanes];
  const float least = scale == 0 ? 1 : scale;   // zeros stay zeros
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - i);
    std::fill(values, values + kLanes, 0.0f);
    copy_row(x + i, values, count);
    store(codes, load(values) / splat(least));
    store(values, load(codes));
    copy_row(values, to + i, count);
  }
}

template <class Number>
void round_inputs(const RoundInputsArgs& args) {
  const int64_t num_groups = (args.size + args.group_size - 1) / args.group_size;
  parallel_for(args.num_threads, args.num_rows, 1, [&](int64_t row, int64_t) noexcept {
    const auto* x = static_cast<const Number*>(args.x) + row * args.x_stride;
    auto* to = static_cast<Number*>(args.out) + row * args.out_stride;
    for (int64_t group = 0, k = 0; k < args.size; ++group, k += args.group_size) {
      const int64_t n = std::min(args.group_size, args.size - k);
      const float scale = args.fixed_scale > 0 ? args.fixed_scale : largest_or_nan(x + k, n) / 448.0f;
      args.scales[row * num_groups + group] = scale;
      round_group(x + k, n, scale, to + k);
    }
    std::fill(to + args.size, to + args.out_stride, Number{});
  });
}

}  // namespace baton
