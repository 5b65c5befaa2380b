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

constexpr int64_t kPiece = 64;   // numbers of a row that are taken at a time

inline void apply_to_row(const BatonFunction& step, int64_t row) {
  for (int64_t i = 0; i < step.size; i += kPiece) {
    const int64_t count = std::min(kPiece, step.size - i), at = row * step.stride + i;
    float x[kPiece] = {}, factor[kPiece];
    load_row(step.x, at, count, step.is_bfloat16, x);
    std::fill_n(factor, kPiece, 1.0f);
    if (step.factor) load_row(step.factor, at, count, step.is_bfloat16, factor);
    for (int64_t j = 0; j < kPiece; j += kLanes)
      store(x + j, apply(static_cast<Function>(step.function), load(x + j)) * load(factor + j));
    store_row(x, count, step.is_bfloat16, step.out, row * step.size + i);
  }
}

template <class Step, class Body>
void for_each_row(const Step& step, const Body& body) {
  const int64_t num_threads = step.num_rows * step.size >= kThreadedNumbers ? step.num_threads : 1;
  for_each(num_threads, step.num_rows, fair_grain(num_threads, step.num_rows), body);
}

inline void apply_to_rows(const BatonFunction& step) {
  for_each_row(step, [&](int64_t row, int64_t) { apply_to_row(step, row); });
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

// x += residual, rounded to its type, which is what the residual becomes.
inline void add_residual(const BatonNorm& step, int64_t row, float* x) {
  for (int64_t i = 0; i < step.size; i += kPiece) {
    const int64_t count = std::min(kPiece, step.size - i), at = row * step.size + i;
    float y[kPiece];
    load_row(step.residual, at, count, step.is_bfloat16, y);
    for (int64_t j = 0; j < count; ++j) x[i + j] += y[j];
    store_row(x + i, count, step.is_bfloat16, step.residual, at);
    if (step.is_bfloat16) load_row(step.residual, at, count, true, x + i);
  }
}

// `x` is memory for a row of whole vectors; `weight` and `bias` are float32.
inline void normalise_row(const BatonNorm& step, int64_t row, float* x, const float* weight,
                          const float* bias) {
  const int64_t size = step.size, width = round_up(size, 16);
  std::fill(x + size, x + width, 0.0f);
  load_row(step.x, row / step.num_inner * step.stride + row % step.num_inner * size, size, step.is_bfloat16,
           x);
  if (step.residual) add_residual(step, row, x);
  if (step.is_centered) {
    const float mean = sum_row<false>(x, width) / size;
    for (int64_t i = 0; i < size; ++i) x[i] -= mean;
  }
  const float scale = 1.0f / std::sqrt(sum_row<true>(x, width) / size + step.eps);
  // A weight in the type of bfloat16 rows multiplies what is rounded, as the family of Llama does.
  const bool is_rounded = step.is_bfloat16 && step.is_weight_bfloat16 && !step.is_centered;
  for (int64_t i = 0; i < size; ++i) x[i] *= scale;
  if (is_rounded)
    for (int64_t i = 0; i < size; ++i) x[i] = widen(to_bfloat16(x[i]));
  for (int64_t i = 0; i < size; ++i) x[i] = x[i] * weight[i] + bias[i];
  store_row(x, size, step.is_bfloat16, step.out, row * size);
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
  for_each_row(step, [&](int64_t row, int64_t thread) {
    normalise_row(step, row, rows + thread * width, weight, bias);
  });
}

}  // namespace baton
