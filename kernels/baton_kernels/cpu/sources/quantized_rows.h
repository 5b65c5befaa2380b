// Linear layers of quantized weights for few rows: codes are decoded in registers, by the multiplications that need them.
#pragma once

#include "decode_codes.h"
#include "panel_scales.h"

namespace baton {

#if BATON_LANES >= 8
// Operands that are decoded in registers; tiles of AMX are loaded from memory.
template <class Number>
constexpr bool kHasRegisterPanels = std::is_same_v<Number, float> || (std::is_same_v<Number, Pair> && !kHasTiles);
constexpr int kRegisterSums = kLanes == 16 ? 16 : 8;   // vectors of sums: one waits for its last addition, others add
// Panels that are multiplied together.
constexpr int panels_at_once(int num_rows) { return std::max(1, kRegisterSums / (num_rows * kPackedVectors)); }

// The outputs of kRows rows for kPanels panels from `panel` on: totals are [kPanels, kRows, kPackedPanelWidth]. The same
// numbers in the same order as those of QuantizedPanel.
template <class Number, int kRows, int kPanels>
class RegisterPanels {
 public:
  RegisterPanels(const QuantizedLinearArgs& args, const float* input_sums, int64_t panel, float* totals)
      : args_(args), nibbles_(args.table), scales_(args, input_sums, 0), panel_(panel), totals_(totals) {}

  __attribute__((noinline)) void run() {
    std::fill(totals_, totals_ + kPanels * kPanelSums, 0.0f);
    for (int64_t chunk = 0; chunk < num_chunks(args_); ++chunk) multiply(chunk);
    for (int p = 0; p < kPanels; ++p) scales_.finish(panel_ + p, kRows, totals_ + p * kPanelSums);
  }

 private:
  using Element = typename Packing<Number>::Element;
  using Column = decltype(load_numbers(static_cast<const Number*>(nullptr)));
  static constexpr int64_t kDepth = Packing<Number>::kDepth, kWidth = kPackedPanelWidth, kPanelSums = kRows * kWidth;

  void multiply(int64_t chunk) {
    constexpr int64_t kCodes = kWidth * kDepth;
    if (args_.element == kNibbles)
      nibbles_.with_row([&](const auto& decode_row) { add_products<kCodes / 2>(chunk, decode_row); });
    else if (args_.element == kIntegers)
      add_products<kCodes>(chunk, [](const uint8_t* from, Column* columns) {
        decode_row(reinterpret_cast<const int8_t*>(from), columns);
      });
    else
      add_products<kCodes>(chunk, [](const uint8_t* from, Column* columns) {
        decode_row(reinterpret_cast<const E4m3*>(from), columns);
      });
  }

  // Add a chunk's products to the totals. `decode_row` reads the codes of an operand, `kBytes`, into the vectors of a panel.
  template <int64_t kBytes, class DecodeRow>
  void add_products(int64_t chunk, const DecodeRow& decode_row) {
    const int64_t k = chunk * args_.chunk, n = std::min(args_.chunk, args_.in_features - k);
    const int64_t size = (n + kDepth - 1) / kDepth, x_stride = args_.x_stride;
    const int64_t panel_bytes = (args_.in_features + kDepth - 1) / kDepth * kBytes;
    const auto* x = static_cast<const Element*>(args_.x) + k;
    const uint8_t* codes = static_cast<const uint8_t*>(args_.codes) + panel_ * panel_bytes + k / kDepth * kBytes;
    Floats sums[kPanels][kRows][kPackedVectors];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) clear(sums[p]);
    for (int64_t j = 0; j < size; ++j, codes += kBytes) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* from = codes + p * panel_bytes;
        for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(from + kCodesAhead + line);
        Column columns[kPackedVectors];
        decode_row(from, columns);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const auto factor = splat_number(reinterpret_cast<const Number*>(x + r * x_stride) + j);
          for (int i = 0; i < kPackedVectors; ++i) sums[p][r][i] = add_product(sums[p][r][i], factor, columns[i]);
        }
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) scales_.of_chunk(chunk, panel_ + p).add(0, sums[p], totals_ + p * kPanelSums);
  }

  const QuantizedLinearArgs& args_;
  const Nibbles<Element> nibbles_;
  const PanelScales scales_;
  const int64_t panel_;
  float* const totals_;
};

template <class Number, int kRows>
void quantized_few_rows(const QuantizedLinearArgs& args, const float* input_sums, int64_t num_panels) {
  constexpr int kAtOnce = panels_at_once(kRows);
  const auto run = [&](auto at_once, int64_t panel) {
    constexpr int kPanels = decltype(at_once)::value;
    alignas(64) float totals[kPanels * kRows * kPackedPanelWidth], factors[kPanels * kRows * kPackedPanelWidth];
    quantized_piece(args, 0, kRows, panel, kPanels, totals, factors, [&](int64_t first, float* to) {
      RegisterPanels<Number, kRows, kPanels>(args, input_sums, first, to).run();
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
template <class Number>
constexpr std::array<FewRows, kPackedTileRows> kFewRowsByNumber = {
    quantized_few_rows<Number, 1>, quantized_few_rows<Number, 2>, quantized_few_rows<Number, 3>,
    quantized_few_rows<Number, 4>, quantized_few_rows<Number, 5>, quantized_few_rows<Number, 6>};
#endif

}  // namespace baton
