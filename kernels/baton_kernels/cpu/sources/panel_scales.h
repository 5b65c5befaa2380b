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

// The factors of all panels, for rows from `first` on. `input_sums` are [num_rows, num_chunks].
template <class Number>
class PanelScales {
 public:
  PanelScales(const QuantizedLinearArgs& args, const float* input_sums, int64_t first)
      : args_(args),
        input_sums_(input_sums),
        first_(first),
        num_chunks_(num_chunks(args)),
        num_groups_((args.in_features + args.group_size - 1) / args.group_size) {}

  // Add the sums of a chunk to their totals: both [num_panels, num_rows, kWidth], of panels and rows from the given on.
  void add(int64_t chunk, int64_t panel, int64_t num_panels, int64_t row, int64_t num_rows, const float* sums,
           float* totals) const {
    const auto add = [&](auto has_zeros, auto has_factors) {
      add_chunk<has_zeros, has_factors>(chunk, panel, num_panels, row, num_rows, sums, totals);
    };
    if (has_group_factors()) args_.zeros ? add(std::true_type(), std::true_type()) : add(std::false_type(), std::true_type());
    else args_.zeros ? add(std::true_type(), std::false_type()) : add(std::false_type(), std::false_type());
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

  template <bool kHasZeros, bool kHasFactors>
  void add_chunk(int64_t chunk, int64_t panel, int64_t num_panels, int64_t row, int64_t num_rows, const float* sums,
                 float* totals) const {
    const QuantizedLinearArgs args = args_;   // a copy, which no store of numbers can change
    const int64_t group = args.group_size == args.chunk ? chunk : chunk * args.chunk / args.group_size;
    const int64_t num_groups = num_groups_, num_chunks = num_chunks_, number = first_ + row;
    const float* input_sums = input_sums_ + number * num_chunks + chunk;
    const float* x_scales = nullptr;
    if constexpr (kHasFactors)
      x_scales = args.x_scales + number * args.num_x_groups + chunk * args.chunk / args.x_group_size;
    for (int64_t place = (panel * num_groups + group) * kWidth; num_panels > 0; --num_panels, place += num_groups * kWidth) {
      Floats scales[kPackedVectors], zeros[kPackedVectors];
      for (int i = 0; i < kPackedVectors; ++i) {
        scales[i] = load_either(args.scales, place + i * kLanes, args.has_bfloat16_scales);
        if constexpr (kHasZeros) zeros[i] = load(args.zeros + place + i * kLanes);
      }
      for (int64_t r = 0; r < num_rows; ++r, sums += kWidth, totals += kWidth) {
        for (int i = 0; i < kPackedVectors; ++i) {
          Floats sum = load_sum(sums + i * kLanes);
          if constexpr (kHasZeros) sum -= zeros[i] * splat(input_sums[r * num_chunks]);
          if constexpr (kHasFactors) sum *= splat(x_scales[r * args.num_x_groups]);
          store(totals + i * kLanes, load(totals + i * kLanes) + sum * scales[i]);
        }
      }
    }
  }

  static Floats load_sum(const float* from) {
    if constexpr (!std::is_same_v<Number, Quad>) return load(from);
    Ints sum;
    std::memcpy(&sum, from, sizeof sum);
    return __builtin_convertvector(sum, Floats);
  }

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
