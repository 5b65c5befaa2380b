// Linear layers of quantized weights for few rows: codes are decoded in registers, by the multiplications that need them.
#pragma once

#include "decode_codes.h"
#include "panel_scales.h"

namespace baton {

#if BATON_LANES >= 8
constexpr int kRegisterSums = kLanes == 16 ? 16 : 8;   // vectors of sums: one waits for its last addition, others add
// Panels that are multiplied together.
constexpr int panels_at_once(int num_rows) { return std::max(1, kRegisterSums / (num_rows * kPackedVectors)); }

// The outputs of kRows rows for kPanels panels from `panel` on: totals are [kPanels, kRows, kPackedPanelWidth]. The same
// numbers in the same order as those of QuantizedPanel.
template <int kRows, int kPanels>
class RegisterPanels {
 public:
  RegisterPanels(const QuantizedLinearArgs& args, const float* input_sums, int64_t panel, float* totals)
      : args_(args), nibbles_(args.table), scales_(args, input_sums, 0), panel_(panel), totals_(totals) {}

  __attribute__((noinline)) void run() {
    std::fill(totals_, totals_ + kPanels * kPanelSums, 0.0f);
    for (int64_t chunk = 0; chunk < num_chunks(args_); ++chunk) {
      multiply(chunk);
      scales_.add(chunk, panel_, kPanels, 0, kRows, sums_, totals_);
    }
    for (int p = 0; p < kPanels; ++p) scales_.finish(panel_ + p, kRows, totals_ + p * kPanelSums);
  }

 private:
  static constexpr int64_t kWidth = kPackedPanelWidth, kPanelSums = kRows * kWidth;

  void multiply(int64_t chunk) {
    const int64_t k = chunk * args_.chunk, n = std::min(args_.chunk, args_.in_features - k);
    const auto* x = static_cast<const float*>(args_.x) + k;
    if (args_.element == kNibbles)
      nibbles_.with_row([&](const auto& decode_row) { sum_products<kWidth / 2>(x, k, n, decode_row); });
    else if (args_.element == kIntegers)
      sum_products<kWidth>(x, k, n, [](const uint8_t* from, Floats* columns) {
        const auto* integers = reinterpret_cast<const int8_t*>(from);
        for (int i = 0; i < kPackedVectors; ++i)
          columns[i] = __builtin_convertvector(load_bytes(integers + i * kLanes), Floats);
      });
    else
      sum_products<kWidth>(x, k, n, [](const uint8_t* from, Floats* columns) {
        const auto* floats = reinterpret_cast<const E4m3*>(from);
        for (int i = 0; i < kPackedVectors; ++i) columns[i] = load_weights(floats + i * kLanes);
      });
  }

  // Sum the products of `n` inputs from number `k` on. `decode_row` reads the codes of one, `kBytes`, into the vectors of
  // a panel.
  template <int64_t kBytes, class DecodeRow>
  void sum_products(const float* x, int64_t k, int64_t n, const DecodeRow& decode_row) {
    const int64_t panel_bytes = args_.in_features * kBytes, x_stride = args_.x_stride;
    const uint8_t* codes = static_cast<const uint8_t*>(args_.codes) + panel_ * panel_bytes + k * kBytes;
    Floats sums[kPanels][kRows][kPackedVectors]{};
    for (int64_t j = 0; j < n; ++j, codes += kBytes) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* from = codes + p * panel_bytes;
        __builtin_prefetch(from + kCodesAhead);
        Floats columns[kPackedVectors];
        decode_row(from, columns);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          for (int i = 0; i < kPackedVectors; ++i) sums[p][r][i] += splat(x[r * x_stride + j]) * columns[i];
      }
    }
    std::memcpy(sums_, sums, sizeof sums);
  }

  const QuantizedLinearArgs& args_;
  const Nibbles<float> nibbles_;
  const PanelScales<float> scales_;
  const int64_t panel_;
  float* const totals_;
  alignas(64) float sums_[kPanels * kPanelSums];
};

template <int kRows>
void quantized_few_rows(const QuantizedLinearArgs& args, const float* input_sums, int64_t num_panels) {
  constexpr int kAtOnce = panels_at_once(kRows);
  const auto run = [&](auto at_once, int64_t panel) {
    constexpr int kPanels = decltype(at_once)::value;
    alignas(64) float totals[kPanels * kRows * kPackedPanelWidth], factors[kPanels * kRows * kPackedPanelWidth];
    quantized_piece(args, 0, kRows, panel, kPanels, totals, factors, [&](int64_t first, float* to) {
      RegisterPanels<kRows, kPanels>(args, input_sums, first, to).run();
    });
  };
  const bool is_wide = num_panels >= 2 * kAtOnce * args.num_threads;   // else many threads would have no panel
  const int64_t num_groups = is_wide ? num_panels / kAtOnce : 0, num_single = num_panels - num_groups * kAtOnce;
  parallel_for(args.num_threads, num_groups + num_single, 1, [&](int64_t index, int64_t) noexcept {
    if (index < num_groups) run(std::integral_constant<int, kAtOnce>(), index * kAtOnce);
    else run(std::integral_constant<int, 1>(), num_groups * kAtOnce + index - num_groups);
  });
}

using FewRows = void (*)(const QuantizedLinearArgs&, const float*, int64_t);
constexpr std::array<FewRows, kPackedTileRows> kFewRowsByNumber = {
    quantized_few_rows<1>, quantized_few_rows<2>, quantized_few_rows<3>,
    quantized_few_rows<4>, quantized_few_rows<5>, quantized_few_rows<6>};
#endif

}  // namespace baton
