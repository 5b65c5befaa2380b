// Norms and activations: a row's numbers depend on the row alone.
#pragma once

#include <algorithm>
#include <cmath>

#include "thread_pool.h"
#include "gemm_panel.h"
#include "structs.h"

namespace baton {

constexpr int64_t kThreadedNumbers = 1 << 15;   // below this, one thread is faster

inline Floats sigmoid(Floats x) {
  const Floats e = exp2_nonpositive((x < 0.0f ? x : -x) * kLog2E);
  return (x < 0.0f ? e : splat(1.0f)) / (1.0f + e);
}

// tanh-approximated GELU is x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3)).
inline Floats gelu_tanh(Floats x) {
  return x * sigmoid(x * (1.59576912160573071f + 0.0713548162726002523f * (x * x)));
}

template <class Scalar>
Floats each_lane(Floats x, Scalar function) {
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = function(x[lane]);
  return x;
}

inline Floats apply(Function function, Floats x) {
  switch (function) {
    case Function::kSilu: return x * sigmoid(x);
    case Function::kGelu:
      return each_lane(x, [](float y) { return 0.5f * y * (1.0f + std::erf(y * 0.70710678118654752f)); });
    case Function::kGeluTanh: return gelu_tanh(x);
    case Function::kTanh: return each_lane(x, [](float y) { return std::tanh(y); });
  }
  return x;
}

// A vector of a row from the number `at` on, of `count` numbers with zeros behind them.
template <class Element>
Floats load_some(const void* row, int64_t at, int64_t count) {
  const Element* from = static_cast<const Element*>(row) + at;
  if (count >= kLanes) return load(from);
  Floats x = {};
  for (int64_t i = 0; i < count; ++i) x[i] = widen(from[i]);
  return x;
}

// The first `count` numbers of a vector, or all of them.
template <class Element>
void store_some(Element* to, Floats x, int64_t count) {
  if (count >= kLanes) return store(to, x);
  for (int64_t i = 0; i < count; ++i) put(to + i, x[i]);
}

inline Floats rounded(Floats x) {
  Bfloat16 halves[kLanes];
  store(halves, x);
  return load(halves);
}

// x[i] = function(x[i]) * factor[i] for n numbers, a multiple of kLanes.
inline void gate(Function function, float* x, const float* factor, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, apply(function, load(x + i)) * load(factor + i));
}

// Outputs of a linear layer that reach memory: half of them where the first half gates the second.
template <class Args>
int64_t output_width(const Args& args) {
  return args.function == kNotGated ? args.out_features : args.out_features / 2;
}

template <class Args>
int64_t out_bytes(const Args& args) {
  return args.is_bfloat16 ? sizeof(Bfloat16) : sizeof(float);
}

template <class Element>
void apply_to_row(const ElementwiseArgs& args, int64_t row) {
  const auto function = static_cast<Function>(args.function);
  Element* out = static_cast<Element*>(args.out) + row * args.size;
  for (int64_t i = 0; i < args.size; i += kLanes) {
    const int64_t count = args.size - i, at = row * args.stride + i;
    Floats y = apply(function, load_some<Element>(args.x, at, count));
    if (args.factor) y *= load_some<Element>(args.factor, at, count);
    store_some(out + i, y, count);
  }
}

template <class Args, class Body>
void parallel_for_rows(const Args& args, const Body& body) {
  const int64_t num_threads = args.num_rows * args.size >= kThreadedNumbers ? args.num_threads : 1;
  parallel_for(num_threads, args.num_rows, 1, body);
}

inline void apply_to_rows(const ElementwiseArgs& args) {
  const auto apply_to = args.is_bfloat16 ? apply_to_row<Bfloat16> : apply_to_row<float>;
  parallel_for_rows(args, [&](int64_t row, int64_t) noexcept { apply_to(args, row); });
}

// The sum of n numbers, a multiple of kLanes, or of their squares.
template <bool kSquares>
float sum_row(const float* x, int64_t n) {
  Floats sum = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats y = load(x + i);
    sum += kSquares ? y * y : y;
  }
  return sum_lanes(sum);
}

// Set `x` to the row to normalize, in whole vectors with zeros behind `size`. The residual is added, and becomes that
// sum, rounded to its dtype.
template <class Element>
void read_row(const NormArgs& args, int64_t row, float* x) {
  const int64_t size = args.size, from = row / args.num_inner * args.stride + row % args.num_inner * size;
  Element* residual = args.residual ? static_cast<Element*>(args.residual) + row * size : nullptr;
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t count = size - i;
    Floats y = load_some<Element>(args.x, from + i, count);
    if (residual) {
      y += load_some<Element>(residual, i, count);
      store_some(residual + i, y, count);
      y = load_some<Element>(residual, i, count);
    }
    store(x + i, y);
  }
}

// `x` is memory for a row of whole vectors, as `weight` and `bias` are, in float32.
template <class Element>
void normalise_row(const NormArgs& args, int64_t row, float* x, const float* weight, const float* bias) {
  const int64_t size = args.size, width = round_up(size, kLanes);
  read_row<Element>(args, row, x);
  if (args.is_centered) {
    const float mean = sum_row<false>(x, width) / size;
    for (int64_t i = 0; i < size; ++i) x[i] -= mean;
  }
  const float scale = 1.0f / std::sqrt(sum_row<true>(x, width) / size + args.eps);
  // A bfloat16 weight multiplies the rounded rows of bfloat16, as in Llama.
  const bool is_rounded = args.is_bfloat16 && args.is_weight_bfloat16 && !args.is_centered;
  Element* out = static_cast<Element*>(args.out) + row * size;
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats y = load(x + i) * scale;
    if (is_rounded) y = rounded(y);
    store_some(out + i, y * load(weight + i) + load(bias + i), size - i);
  }
}

inline int64_t norm_scratch(const NormArgs& args) {
  return (2 + args.num_threads) * round_up(args.size, 16);
}

inline void normalise_rows(const NormArgs& args, float* scratch) {
  const int64_t width = round_up(args.size, 16);
  float *weight = scratch, *bias = scratch + width, *rows = bias + width;
  std::fill_n(weight, width, 1.0f);
  std::fill_n(bias, width, 0.0f);
  if (args.weight) load_row(args.weight, 0, args.size, args.is_weight_bfloat16, weight);
  if (args.bias) load_row(args.bias, 0, args.size, args.is_weight_bfloat16, bias);
  const auto normalise_one = args.is_bfloat16 ? normalise_row<Bfloat16> : normalise_row<float>;
  parallel_for_rows(args, [&](int64_t row, int64_t thread) noexcept {
    normalise_one(args, row, rows + thread * width, weight, bias);
  });
}

}  // namespace baton
