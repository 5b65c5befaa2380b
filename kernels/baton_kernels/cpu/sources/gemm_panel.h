// Matrix products with panels of kPanelWidth columns. Each number of a result is one chain of multiply-adds over the inner
// dimension, in order: it depends on no other row.
#pragma once

#include "bfloat16_pairs.h"
#include "structs.h"

namespace baton {

// A matrix whose rows begin `stride` elements apart.
template <class Element>
struct Matrix {
  Element* first;
  int64_t stride;

  Element* row(int64_t number) const { return first + number * stride; }
  Matrix from(int64_t number) const { return {row(number), stride}; }
};

// sums[row] += x[row] @ panel, for kRows rows of n numbers and kVectors vectors of the panel.
template <int kRows, int kVectors, class Number, class Weight>
__attribute__((noinline)) void gemm_tile(Matrix<const Number> x, Matrix<const Weight> panel, int64_t n,
                                         Matrix<float> sums) {
  Floats totals[kRows][kVectors];
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kVectors; ++i) totals[row][i] = load(sums.row(row) + i * kLanes);
  for (int64_t k = 0; k < n; ++k) {
    decltype(load_numbers(panel.first)) columns[kVectors];
    for (int i = 0; i < kVectors; ++i) columns[i] = load_numbers(panel.row(k) + i * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const auto factor = splat_number(x.row(row) + k);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) totals[row][i] = add_product(totals[row][i], factor, columns[i]);
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kVectors; ++i) store(sums.row(row) + i * kLanes, totals[row][i]);
}

// sums += x @ panel for any number of rows: in tiles as large as the registers hold, then in smaller ones.
template <class Weight, class Number = float, int kRows = kLanes == 16 ? 12 : 6>
void gemm_panel(Matrix<const Number> x, Matrix<const Weight> panel, int64_t n, Matrix<float> sums,
                int64_t num_rows) {
  int64_t row = 0;
  for (; row + kRows <= num_rows; row += kRows)
    for (int column = 0; column < kPanelWidth; column += 2 * kLanes)
      gemm_tile<kRows, 2>(x.from(row), Matrix<const Weight>{panel.first + column, panel.stride}, n,
                          Matrix<float>{sums.row(row) + column, sums.stride});
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows == 12 ? 8 : kRows / 2;
    if (row < num_rows)
      gemm_panel<Weight, Number, kFewer>(x.from(row), panel, n, sums.from(row), num_rows - row);
  }
}

// Load n numbers of a row of either dtype, from the number `at` on.
__attribute__((noinline)) inline void load_row(const void* row, int64_t at, int64_t n, bool is_bfloat16,
                                               float* to) {
  if (is_bfloat16) copy_row(static_cast<const Bfloat16*>(row) + at, to, n);
  else copy_row(static_cast<const float*>(row) + at, to, n);
}

__attribute__((noinline)) inline void store_row(const float* from, int64_t n, bool is_bfloat16, void* row,
                                                int64_t at) {
  if (is_bfloat16) copy_row(from, static_cast<Bfloat16*>(row) + at, n);
  else copy_row(from, static_cast<float*>(row) + at, n);
}

}  // namespace baton
