// Linear layers of the batch-invariant mode, with weights in panels.
#pragma once

#include <algorithm>

#include "helpers.h"
#include "panels.h"

// The caller's mirror of this struct is cpu_invariant_library.py.
struct BatonProduct {
  const void* x;            // [num_rows, in_features]
  const void* panels;       // [num_panels, in_features, kPanel], zeros behind out_features
  const void* bias;         // [out_features] or null
  void* out;                // [num_rows, out_features]
  int64_t x_stride;         // elements between the rows of x
  int64_t num_rows, in_features, out_features;
  int64_t num_threads;
  int32_t is_bfloat16;      // all four; float32 otherwise
};

namespace baton {

// What a core keeps in its cache: rows that share a pass over a panel, and the part of them in work.
constexpr int64_t kProductRows = 96, kProductInner = 512;

inline int64_t product_scratch(const BatonProduct& step) {
  const int64_t widened = step.is_bfloat16 ? round_up(step.num_rows * step.in_features, 16) : 0;
  return widened + step.num_threads * kProductRows * kPanel;
}

// Rows [first, first + kProductRows) of one panel's outputs; `x` is the whole input as float32.
inline void multiply_panel(const BatonProduct& step, Rows<const float> x, int64_t first, int64_t panel,
                           float* memory) {
  const int64_t num_rows = std::min(kProductRows, step.num_rows - first), inner = step.in_features;
  const Rows<float> sums{memory, kPanel};
  std::fill_n(memory, num_rows * kPanel, 0.0f);
  for (int64_t k = 0; k < inner; k += kProductInner) {
    const int64_t count = std::min(kProductInner, inner - k), at = (panel * inner + k) * kPanel;
    const Rows<const float> rows{x.row(first) + k, x.stride};
    if (step.is_bfloat16)
      fold_panel<Bfloat16>(rows, {static_cast<const Bfloat16*>(step.panels) + at, kPanel}, count, sums,
                           num_rows);
    else
      fold_panel<float>(rows, {static_cast<const float*>(step.panels) + at, kPanel}, count, sums, num_rows);
  }
  const int64_t out = panel * kPanel, num_outs = std::min<int64_t>(kPanel, step.out_features - out);
  float bias[kPanel] = {};
  if (step.bias) load_row(step.bias, out, num_outs, step.is_bfloat16, bias);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t o = 0; o < kPanel; ++o) sums.row(row)[o] += bias[o];
    store_row(sums.row(row), num_outs, step.is_bfloat16, step.out, (first + row) * step.out_features + out);
  }
}

inline void multiply_panels(const BatonProduct& step, float* scratch) {
  const int64_t num_panels = (step.out_features + kPanel - 1) / kPanel;
  const int64_t inner = step.in_features, num_rows = step.num_rows;
  Rows<const float> x{static_cast<const float*>(step.x), step.x_stride};
  float* sums = scratch;
  if (step.is_bfloat16) {
    x = {scratch, inner};
    sums += round_up(num_rows * inner, 16);
  }
  if (step.is_bfloat16)
    for_each(step.num_threads, num_rows, 1, [&](int64_t row, int64_t) noexcept {
      load_row(step.x, row * step.x_stride, inner, true, scratch + row * inner);
    });
  const int64_t count = (num_rows + kProductRows - 1) / kProductRows * num_panels;
  for_each(step.num_threads, count, 1, [&](int64_t piece, int64_t thread) noexcept {
    const int64_t first = piece / num_panels * kProductRows;
    multiply_panel(step, x, first, piece % num_panels, sums + thread * kProductRows * kPanel);
  });
}

}  // namespace baton
