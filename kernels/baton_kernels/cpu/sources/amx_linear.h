// Linear layers of bfloat16 with AMX's tiles, for any number of rows. Packed weights are panels of 16 outputs, each one
// tile of [16 pairs of inputs][16 outputs][2] after another. Two panels are multiplied at a time: neighbours, or a gate
// and its factor. A sum has the same order, and so the same bits, with any number of rows, wherever its row stands.
#pragma once

#include <algorithm>
#include <array>

#include "amx.h"
#include "norms_activations.h"
#include "prefetch.h"
#include "structs.h"
#include "thread_pool.h"

namespace baton {

constexpr int64_t kTileOutputs = 16, kTileInputs = 32, kTileNumbers = kTileOutputs * kTileInputs;
constexpr int64_t kTileBytes = kTileNumbers * sizeof(Bfloat16);
constexpr int64_t kSumRows = 32, kSumWidth = 2 * kTileOutputs, kSumSize = kSumRows * kSumWidth;   // four tiles of sums
constexpr int64_t kTilesAhead = 2;   // distance of the prefetch where a panel is read once: more drops requests
constexpr int64_t kBlockTiles = 14;  // tiles of a panel that many rows share: two such blocks fit the first cache
constexpr int64_t kPassRows = 512;   // rows that share a pass over a pair of panels
constexpr int64_t kPassBytes = 1 << 20;   // bytes of them: half of the second cache
constexpr int64_t kDeepRows = 256;   // where fewer rows than these fit: a block of inputs at a time, for many panels
static_assert(kLanes == kTileOutputs);

// A part of two panels, from the same tile on.
struct PanelPair {
  const Bfloat16 *left, *right;

  PanelPair from(int64_t tile) const { return {left + tile * kTileNumbers, right + tile * kTileNumbers}; }
};

// A prefetch of two panels.
struct PairPrefetch {
  Prefetch left, right;
};

// The sums of up to 32 rows and two panels, in tiles 0 to 3; rows of x take tiles 4 and 5, weights 6 and 7.
template <bool kTwo>
struct TileSums {
  static void load(const float* sums, int64_t stride) {
    load_tile<0>(sums, stride), load_tile<1>(sums + kTileOutputs, stride);
    if constexpr (kTwo) {
      sums += stride / sizeof(float) * kTileOutputs;
      load_tile<2>(sums, stride), load_tile<3>(sums + kTileOutputs, stride);
    }
  }

  static void store(float* sums) {
    constexpr int64_t kStride = kSumWidth * sizeof(float);
    store_tile<0>(sums, kStride), store_tile<1>(sums + kTileOutputs, kStride);
    if constexpr (kTwo) {
      sums += kTileOutputs * kSumWidth;
      store_tile<2>(sums, kStride), store_tile<3>(sums + kTileOutputs, kStride);
    }
  }

  // Add the products of rows of x, which lie `stride` bytes apart, with `n` tiles of each panel. kLocality is that of
  // __builtin_prefetch.
  template <int kLocality>
  static void add(const Bfloat16* x, int64_t stride, PanelPair panels, int64_t n, PairPrefetch prefetch) {
    const Bfloat16* second = x + stride / sizeof(Bfloat16) * kTileOutputs;
    for (int64_t k = 0; k < n; ++k) {
      prefetch.left.issue<kLocality>();
      load_tile<6>(panels.left + k * kTileNumbers, 64);
      load_tile<4>(x + k * kTileInputs, stride);
      multiply_tiles<0, 4, 6>();
      prefetch.right.issue<kLocality>();
      load_tile<7>(panels.right + k * kTileNumbers, 64);
      multiply_tiles<1, 4, 7>();
      if constexpr (kTwo) {
        load_tile<5>(second + k * kTileInputs, stride);
        multiply_tiles<2, 5, 6>();
        multiply_tiles<3, 5, 7>();
      }
    }
  }
};

// How the rows and the pairs of panels of a layer are parted: passes of rows times groups of pairs.
struct TileLinearPlan {
  int64_t depth, num_panels, num_pairs, num_passes, pass_rows, num_groups, group_pairs;

  explicit TileLinearPlan(const PackedLinearArgs& args)
      : depth(args.in_features / kTileInputs), num_panels((args.out_features + kTileOutputs - 1) / kTileOutputs) {
    num_pairs = (num_panels + 1) / 2;
    const int64_t fitting = kPassBytes / (args.in_features * sizeof(Bfloat16)) / kSumRows * kSumRows;
    const bool is_deep = args.num_rows > std::max(fitting, kSumRows) && fitting < kDeepRows;
    const int64_t most = is_deep ? kDeepRows : std::clamp(fitting, kSumRows, kPassRows);
    num_passes = (args.num_rows + most - 1) / most;
    pass_rows = num_passes ? round_up((args.num_rows + num_passes - 1) / num_passes, kSumRows) : 0;
    const int64_t num_shares = 2 * std::max<int64_t>(args.num_threads, 1);
    group_pairs = is_deep ? (num_pairs + num_shares - 1) / num_shares : 1;
    num_groups = (num_pairs + group_pairs - 1) / group_pairs;
  }

  // Floats of a thread for its sums.
  int64_t scratch_size() const { return group_pairs * pass_rows / kSumRows * kSumSize; }
};

inline void configure_rows(int64_t num_rows) {
  TileConfiguration all{};
  all.palette = 1;
  const uint8_t first = std::min<int64_t>(num_rows, kTileOutputs), second = std::max<int64_t>(num_rows - kTileOutputs, 1);
  const std::array<uint8_t, 8> rows = {first, first, second, second, first, second, 16, 16};
  for (int tile = 0; tile < 8; ++tile) all.row_bytes[tile] = 64, all.num_rows[tile] = rows[tile];
  configure_tiles(all);
}

// One pass of rows times one group of pairs of panels.
class TileLinear {
 public:
  TileLinear(const PackedLinearArgs& args, const TileLinearPlan& plan, int64_t index, float* sums)
      : args_(args),
        plan_(plan),
        first_row_(index / plan.num_groups * plan.pass_rows),
        num_rows_(std::min(plan.pass_rows, args.num_rows - first_row_)),
        begin_(index % plan.num_groups * plan.group_pairs),
        end_(std::min(begin_ + plan.group_pairs, plan.num_pairs)),
        num_tiles_((num_rows_ + kSumRows - 1) / kSumRows),
        block_(num_tiles_ == 1 ? plan.depth : kBlockTiles),
        sums_(sums) {}

  void run() {
    const TileSession session;
    for (int64_t k = 0; k < plan_.depth; k += block_)
      for (int64_t pair = begin_; pair < end_; ++pair)
        for (int64_t tile = 0; tile < num_tiles_; ++tile) {
          const int64_t count = std::min(kSumRows, num_rows_ - tile * kSumRows);
          if (count != configured_) configure_rows(configured_ = count);
          (count > kTileOutputs ? &TileLinear::multiply<true> : &TileLinear::multiply<false>)(*this, k, pair, tile);
          if (k + block_ >= plan_.depth) write(pair, tile, count);
        }
  }

 private:
  template <bool kTwo>
  static void multiply(const TileLinear& own, int64_t k, int64_t pair, int64_t tile) {
    using Sums = TileSums<kTwo>;
    const int64_t n = std::min(own.block_, own.plan_.depth - k), stride = own.args_.x_stride * sizeof(Bfloat16);
    const Bfloat16* x = static_cast<const Bfloat16*>(own.args_.x) +
                        (own.first_row_ + tile * kSumRows) * own.args_.x_stride + k * kTileInputs;
    const PanelPair panels = own.panels(pair).from(k), next = own.panels_after(pair, k + n, k);
    float* sums = own.sums_of(pair, tile);
    if (k == 0) own.load_bias<kTwo>(pair);
    else Sums::load(sums, kSumWidth * sizeof(float));
    if (own.num_tiles_ == 1) {
      const int64_t ahead = std::min(kTilesAhead, n);
      Sums::template add<3>(x, stride, panels, n - ahead, prefetch_all(panels.from(ahead)));
      Sums::template add<3>(x + (n - ahead) * kTileInputs, stride, panels.from(n - ahead), ahead, prefetch_all(next));
    } else {
      const auto share = [&](const Bfloat16* from) { return share_prefetch(from, kTileBytes, n, own.num_tiles_, tile); };
      Sums::template add<2>(x, stride, panels, n, {share(next.left), share(next.right)});
    }
    Sums::store(sums);
  }

  static PairPrefetch prefetch_all(PanelPair panels) {
    return {Prefetch(panels.left, kTileBytes), Prefetch(panels.right, kTileBytes)};
  }

  bool is_gated() const { return args_.function != kNotGated; }

  // The number of a panel of a pair; the last neighbour may be alone, and is then multiplied twice.
  int64_t panel_number(int64_t pair, int64_t side) const {
    return is_gated() ? pair + side * plan_.num_pairs : std::min(2 * pair + side, plan_.num_panels - 1);
  }

  PanelPair panels(int64_t pair) const {
    const auto* weights = static_cast<const Bfloat16*>(args_.packed_weight);
    const int64_t size = plan_.depth * kTileNumbers;
    return {weights + panel_number(pair, 0) * size, weights + panel_number(pair, 1) * size};
  }

  // The panels that are read after block `k` of a pair; its end is `after`.
  PanelPair panels_after(int64_t pair, int64_t after, int64_t k) const {
    if (pair + 1 < end_) return panels(pair + 1).from(k);
    if (after < plan_.depth) return panels(begin_).from(after);
    return panels(std::min(pair + 1, plan_.num_pairs - 1));
  }

  float* sums_of(int64_t pair, int64_t tile) const {
    return sums_ + ((pair - begin_) * num_tiles_ + tile) * kSumSize;
  }

  // Begin the sums of every row with the bias: tiles are loaded from one row again and again.
  template <bool kTwo>
  void load_bias(int64_t pair) const {
    alignas(64) float bias[kSumWidth] = {};
    if (args_.bias)
      for (int side = 0; side < 2; ++side)
        copy_row(static_cast<const Bfloat16*>(args_.bias) + panel_number(pair, side) * kTileOutputs,
                 bias + side * kTileOutputs, kTileOutputs);
    TileSums<kTwo>::load(bias, 0);
  }

  void write(int64_t pair, int64_t tile, int64_t count) const {
    const int64_t width = output_width(args_), column = pair * (is_gated() ? kTileOutputs : kSumWidth);
    const float* sums = sums_of(pair, tile);
    Bfloat16* out = static_cast<Bfloat16*>(args_.out) + (first_row_ + tile * kSumRows) * width + column;
    const auto function = static_cast<Function>(args_.function);
    for (int64_t row = 0; row < count; ++row, sums += kSumWidth, out += width) {
      const Floats left = load(sums), right = load(sums + kTileOutputs);
      if (is_gated()) write_rounded<kTileOutputs>(out, apply(function, left) * right, right);
      else if (width - column >= kSumWidth) write_rounded<kSumWidth>(out, left, right);
      else copy_row(sums, out, width - column);
    }
  }

  // Write the first kCount numbers of two vectors.
  template <int64_t kCount>
  static void write_rounded(Bfloat16* out, Floats left, Floats right) {
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)right, (__m512)left);
    std::memcpy(out, &both, kCount * sizeof *out);
  }

  const PackedLinearArgs& args_;
  const TileLinearPlan& plan_;
  const int64_t first_row_, num_rows_, begin_, end_, num_tiles_, block_;
  int64_t configured_ = 0;
  float* const sums_;
};

// `scratch` has TileLinearPlan::scratch_size floats for each thread.
inline void amx_linear(const PackedLinearArgs& args, const TileLinearPlan& plan, float* scratch) {
  const int64_t size = plan.scratch_size();
  parallel_for(args.num_threads, plan.num_passes * plan.num_groups, 1, [&](int64_t index, int64_t thread) noexcept {
    TileLinear(args, plan, index, scratch + thread * size).run();
  });
}

}  // namespace baton
