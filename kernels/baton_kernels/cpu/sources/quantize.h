// Quantization of rows to integers of 8 bits, with a scale per row.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "thread_pool.h"
#include "vectors.h"
#include "structs.h"

namespace baton {

inline uint32_t magnitude_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffff;
}

// The bits of magnitudes are in the order of the magnitudes, with infinity and NaN above all numbers.
template <class Element>
float largest_magnitude(const Element* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, magnitude_bits(widen(x[i])));
  float magnitude;
  std::memcpy(&magnitude, &largest, sizeof magnitude);
  return magnitude;
}

// `x[i]` is about `codes[i] * scale`. A row that is not finite has the scale NaN; one whose numbers are all
// so small that 127 divided by the largest is infinite counts as zeros.
template <class Element>
void quantize_row(const Element* x, int64_t n, int8_t* codes, float* scale) {
  const float largest = largest_magnitude(x, n), inverse = kLargestCode / largest;
  const bool is_finite = std::isfinite(largest);
  if (!is_finite || !std::isfinite(inverse)) {
    std::fill_n(codes, n, int8_t{0});
    *scale = is_finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    return;
  }
  for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(std::rint(widen(x[i]) * inverse));
  *scale = largest / kLargestCode;
}

inline void quantize_rows(const QuantizeArgs& args) {
  parallel_for(args.num_threads, args.num_rows, 1, [&](int64_t row, int64_t) noexcept {
    int8_t* codes = args.codes + row * args.size;
    const int64_t from = row * args.x_stride;
    if (args.is_bfloat16)
      quantize_row(static_cast<const Bfloat16*>(args.x) + from, args.size, codes, args.scales + row);
    else
      quantize_row(static_cast<const float*>(args.x) + from, args.size, codes, args.scales + row);
  });
}

}  // namespace baton
