// What is computed row by row between two matrix products: a row's numbers do not depend on those beside it.
#pragma once

#include <algorithm>
#include <cmath>

#include "helpers.h"
#include "panels.h"

// The caller's mirrors of these structs are in cpu_layers.py.
struct BatonNorm {
  const void* x;            // [num_rows / num_inner, num_inner, size]
  void* residual;           // [num_rows, size], which x is added to first, or null
  const void* weight;       // [size] or null
  const void* bias;         // [size] or null, in the type of the weight
  void* out;                // [num_rows, size]
  int64_t stride;           // elements between the outer rows of x
  int64_t num_rows, num_inner, size, num_threads;
  int32_t is_bfloat16, is_weight_bfloat16;
  int32_t is_centered;      // subtract the mean first: layer normalisation
  float eps;
};

struct BatonFunction {
  const void* x;            // [num_rows, size]
  const void* factor;       // like x, or null
  void* out;                // [num_rows, size], contiguous: function(x) * factor
  int64_t stride;           // elements between the rows of x and of factor
  int64_t num_rows, size, num_threads;
  int32_t is_bfloat16;
  int32_t function;         // a number of Function
};

namespace baton {

constexpr int64_t kThreadedNumbers = 1 << 15;   // fewer are done before another thread has begun

constexpr int32_t kNotGated = -1;               // in place of a function of a linear layer's outputs

enum class Function : int32_t { kSilu, kGelu, kGeluTanh, kTanh, kCos, kSin };

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
    case Function::kCos: return each_lane(x, [](float y) { return std::cos(y); });
    case Function::kSin: return each_lane(x, [](float y) { return std::sin(y); });
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

template <class Element>
void apply_to_row(const BatonFunction& step, int64_t row) {
  const auto function = static_cast<Function>(step.function);
  Element* out = static_cast<Element*>(step.out) + row * step.size;
  for (int64_t i = 0; i < step.size; i += kLanes) {
    const int64_t count = step.size - i, at = row * step.stride + i;
    Floats y = apply(function, load_some<Element>(step.x, at, count));
    if (step.factor) y *= load_some<Element>(step.factor, at, count);
    store_some(out + i, y, count);
  }
}

template <class Step, class Body>
void for_each_row(const Step& step, const Body& body) {
  const int64_t num_threads = step.num_rows * step.size >= kThreadedNumbers ? step.num_threads : 1;
  for_each(num_threads, step.num_rows, 1, body);
}

inline void apply_to_rows(const BatonFunction& step) {
  const auto apply_to = step.is_bfloat16 ? apply_to_row<Bfloat16> : apply_to_row<float>;
  for_each_row(step, [&](int64_t row, int64_t) noexcept { apply_to(step, row); });
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

// Set `x` to a row of whole vectors, zeros behind `size`: the row to normalise, with the residual added, which becomes
// that sum, rounded to its type.
template <class Element>
void read_row(const BatonNorm& step, int64_t row, float* x) {
  const int64_t size = step.size, from = row / step.num_inner * step.stride + row % step.num_inner * size;
  Element* residual = step.residual ? static_cast<Element*>(step.residual) + row * size : nullptr;
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t count = size - i;
    Floats y = load_some<Element>(step.x, from + i, count);
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
void normalise_row(const BatonNorm& step, int64_t row, float* x, const float* weight, const float* bias) {
  const int64_t size = step.size, width = round_up(size, kLanes);
  read_row<Element>(step, row, x);
  if (step.is_centered) {
    const float mean = sum_row<false>(x, width) / size;
    for (int64_t i = 0; i < size; ++i) x[i] -= mean;
  }
  const float scale = 1.0f / std::sqrt(sum_row<true>(x, width) / size + step.eps);
  // A weight in the type of bfloat16 rows multiplies what is rounded, as the family of Llama does.
  const bool is_rounded = step.is_bfloat16 && step.is_weight_bfloat16 && !step.is_centered;
  Element* out = static_cast<Element*>(step.out) + row * size;
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats y = load(x + i) * scale;
    if (is_rounded) y = rounded(y);
    store_some(out + i, y * load(weight + i) + load(bias + i), size - i);
  }
}

inline int64_t norm_scratch(const BatonNorm& step) {
  return (2 + step.num_threads) * round_up(step.size, 16);
}

inline void normalise_rows(const BatonNorm& step, float* scratch) {
  const int64_t width = round_up(step.size, 16);
  float *weight = scratch, *bias = scratch + width, *rows = bias + width;
  std::fill_n(weight, width, 1.0f);
  std::fill_n(bias, width, 0.0f);
  if (step.weight) load_row(step.weight, 0, step.size, step.is_weight_bfloat16, weight);
  if (step.bias) load_row(step.bias, 0, step.size, step.is_weight_bfloat16, bias);
  const auto normalise_one = step.is_bfloat16 ? normalise_row<Bfloat16> : normalise_row<float>;
  for_each_row(step, [&](int64_t row, int64_t thread) noexcept {
    normalise_one(step, row, rows + thread * width, weight, bias);
  });
}

}  // namespace baton
