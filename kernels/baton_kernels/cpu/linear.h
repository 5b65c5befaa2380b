// Linear layers of bfloat16 in float32 arithmetic, for CPUs that cannot multiply bfloat16: half the bytes of
// float32 weights are read, and a row's numbers do not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "helpers.h"
#include "vectors.h"

// The caller's mirror of this struct is cpu_library.py.
struct BatonLinear {
  const uint16_t* x;        // [num_rows, in_features]
  const uint16_t* weight;   // [out_features, in_features]
  const uint16_t* bias;     // [out_features] or null
  uint16_t* out;            // [num_rows, out_features]
  int64_t x_stride;         // elements between the rows of x
  int64_t num_rows, in_features, out_features;
  int64_t num_threads;
};

namespace baton {

// A tile of results has as many numbers as a vector: kTileOuts outputs of kTileRows rows.
constexpr int kTileOuts = kLanes == 4 ? 2 : 4;
constexpr int kTileRows = kLanes / kTileOuts;
constexpr int64_t kPassRows = 32;   // rows that share one pass over the weights, and a core's cache

struct LinearScratch {
  int64_t width;      // of a row, zeros behind in_features
  int64_t num_rows;   // of a pass, in whole tiles
  float* x;           // [num_rows, width]
  float* weights;     // [num_threads, kTileOuts, width]

  static int64_t width_of(const BatonLinear& step) { return round_up(step.in_features, 16); }
  static int64_t rows_of(const BatonLinear& step) {
    return round_up(std::min(kPassRows, step.num_rows), kTileRows);
  }
  static int64_t size_of(const BatonLinear& step) {
    return (rows_of(step) + step.num_threads * kTileOuts) * width_of(step);
  }
  LinearScratch(const BatonLinear& step, float* place)
      : width(width_of(step)), num_rows(rows_of(step)), x(place), weights(x + num_rows * width) {
    std::fill_n(place, size_of(step), 0.0f);
  }
};

// Lane kTileRows * o + i is the product of row i of x with row o of weights.
inline Floats multiply_tile(const float* x, const float* weights, int64_t width) {
  Floats sums[kLanes] = {};
  for (int64_t k = 0; k < width; k += kLanes) {
    Floats rows[kTileRows];
    for (int i = 0; i < kTileRows; ++i) rows[i] = load(x + i * width + k);
#pragma GCC unroll 4
    for (int o = 0; o < kTileOuts; ++o) {
      const Floats weight = load(weights + o * width + k);
#pragma GCC unroll 4
      for (int i = 0; i < kTileRows; ++i) sums[o * kTileRows + i] += weight * rows[i];
    }
  }
  return sum_each(sums);
}

// Outputs [out, out + kTileOuts) of rows [first, first + count).
inline void multiply_outs(
    const BatonLinear& step, const LinearScratch& scratch, float* weights, int64_t out, int64_t first,
    int64_t count) {
  const int64_t num_outs = std::min<int64_t>(kTileOuts, step.out_features - out);
  for (int64_t o = 0; o < num_outs; ++o)
    copy_row(step.weight + (out + o) * step.in_features, weights + o * scratch.width, step.in_features);
  for (int64_t row = 0; row < count; row += kTileRows) {
    const Floats tile = multiply_tile(scratch.x + row * scratch.width, weights, scratch.width);
    for (int64_t o = 0; o < num_outs; ++o) {
      const float bias = step.bias ? widen(step.bias[out + o]) : 0.0f;
      for (int64_t i = 0; i < std::min<int64_t>(kTileRows, count - row); ++i)
        step.out[(first + row + i) * step.out_features + out + o] =
            to_bfloat16(tile[o * kTileRows + i] + bias);
    }
  }
}

inline void multiply(const BatonLinear& step, float* place) {
  const LinearScratch scratch(step, place);
  for (int64_t first = 0; first < step.num_rows; first += kPassRows) {
    const int64_t count = std::min(kPassRows, step.num_rows - first);
    for (int64_t row = 0; row < count; ++row)
      copy_row(step.x + (first + row) * step.x_stride, scratch.x + row * scratch.width, step.in_features);
    const int64_t num_tiles = (step.out_features + kTileOuts - 1) / kTileOuts;
    for_each(step.num_threads, num_tiles, 1,
             [&](int64_t tile, int64_t thread) {
               float* weights = scratch.weights + thread * kTileOuts * scratch.width;
               multiply_outs(step, scratch, weights, tile * kTileOuts, first, count);
             });
  }
}

}  // namespace baton
