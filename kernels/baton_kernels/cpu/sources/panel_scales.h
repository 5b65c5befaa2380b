// How the products of quantized weights become outputs: scales and zero points of weights, scales of inputs, bias, gates.
#pragma once

#include <algorithm>
#include <type_traits>

#include "packed_linear.h"
#include "structs.h"

namespace baton {

// A vector of numbers that are kept as bfloat16 or as float32.
inline Floats load_either(const void* from, int64_t at, bool is_bfloat16) {
  return is_bfloat16 ? load(static_cast<const Bfloat16*>(from) + at) : load(static_cast<const float*>(from) + at);
}

inline int64_t num_chunks(const QuantizedLinearArgs& args) { return (args.in_features + args.chunk - 1) / args.chunk; }

// What the sums of a chunk and a panel are scaled with. Input sums, which zero points are multiplied with, and scales of
// inputs are those of the first row; each further row's are `num_chunks` and `num_x_groups` on.
struct ChunkScales {
  const void* scales;
  const float *zeros, *input_sums, *x_scales;   // of zeros and of scales of inputs null where there are none
  int64_t num_chunks, num_x_groups;
  bool has_bfloat16_scales;

  // Add the sums of kRows rows from `row` on to their totals, [kRows, kPackedPanelWidth].
  template <int kRows>
  __attribute__((always_inline)) void add(int64_t row, const Floats (&sums)[kRows][kPackedVectors], float* totals) const {
#pragma GCC unroll 8
    for (int i = 0; i < kPackedVectors; ++i) {
      const Floats scale = load_either(scales, i * kLanes, has_bfloat16_scales);
      const Floats zero = zeros ? load(zeros + i * kLanes) : Floats{};
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        Floats sum = sums[r][i];
        if (zeros) sum -= zero * splat(input_sums[(row + r) * num_chunks]);
        if (x_scales) sum *= splat(x_scales[(row + r) * num_x_groups]);
        float* total = totals + r * kPackedPanelWidth + i * kLanes;
        store(total, load(total) + sum * scale);
      }
    }
  }
};

// The factors of all panels, for rows from `first` on. `input_sums` are [num_rows, num_chunks].
class PanelScales {
 public:
  PanelScales(const QuantizedLinearArgs& args, const float* input_sums, int64_t first)
      : args_(args),
        input_sums_(input_sums),
        first_(first),
        num_chunks_(num_chunks(args)),
        num_groups_((args.in_features + args.group_size - 1) / args.group_size) {}

  // Those of a chunk of a panel, for all rows.
  ChunkScales of_chunk(int64_t chunk, int64_t panel) const {
    const int64_t group = args_.group_size == args_.chunk ? chunk : chunk * args_.chunk / args_.group_size;
    const int64_t place = (panel * num_groups_ + group) * kWidth;
    const int64_t x_group = has_group_factors() ? chunk * args_.chunk / args_.x_group_size : 0;
    return {.scales = static_cast<const char*>(args_.scales) + place * (args_.has_bfloat16_scales ? 2 : 4),
            .zeros = args_.zeros ? args_.zeros + place : nullptr,
            .input_sums = input_sums_ + first_ * num_chunks_ + chunk,
            .x_scales = has_group_factors() ? args_.x_scales + first_ * args_.num_x_groups + x_group : nullptr,
            .num_chunks = num_chunks_,
            .num_x_groups = args_.num_x_groups,
            .has_bfloat16_scales = bool(args_.has_bfloat16_scales)};
  }

  // Multiply a panel's totals of all rows with the factors of whole rows and of outputs, and add the bias.
  void finish(int64_t panel, int64_t num_rows, float* totals) const {
    for (int i = 0; i < kWidth; i += kLanes) {
      const Floats scale = args_.output_scales ? load(args_.output_scales + panel * kWidth + i) : splat(1.0f);
      const Floats bias = args_.bias ? load(args_.bias + panel * kWidth + i) : Floats{};
      for (int64_t row = 0; row < num_rows; ++row) {
        float* total = totals + row * kWidth + i;
        const float factor = args_.x_scales && !has_group_factors() ? args_.x_scales[first_ + row] : 1.0f;
        store(total, load(total) * splat(factor) * scale + bias);
      }
    }
  }

 private:
  static constexpr int64_t kWidth = kPackedPanelWidth;

  // Factors of whole rows are left to `finish`.
  bool has_group_factors() const { return args_.num_x_groups > 1; }

  const QuantizedLinearArgs& args_;
  const float* const input_sums_;
  const int64_t first_, num_chunks_, num_groups_;
};

// The outputs of some panels, or of twice as many that are gated with each other, for `num_rows` rows from `first` on.
// `multiply` fills the totals, [num_panels, num_rows, kPackedPanelWidth], of the panels from a given one on.
template <class Multiply>
void quantized_piece(const QuantizedLinearArgs& args, int64_t first, int64_t num_rows, int64_t panel, int64_t num_panels,
                     float* totals, float* factors, const Multiply& multiply) {
  const int64_t width = output_width(args);
  multiply(panel, totals);
  if (args.function != kNotGated) {
    multiply(panel + width / kPackedPanelWidth, factors);
    gate(static_cast<Function>(args.function), totals, factors, num_panels * num_rows * kPackedPanelWidth);
  }
  for (int64_t end = panel + num_panels; panel < end; ++panel) {
    const int64_t num_outs = std::min<int64_t>(kPackedPanelWidth, width - panel * kPackedPanelWidth);
    for (int64_t row = first; row < first + num_rows; ++row, totals += kPackedPanelWidth)
      store_row(totals, num_outs, args.is_bfloat16, args.out, row * width + panel * kPackedPanelWidth);
  }
}

}  // namespace baton
