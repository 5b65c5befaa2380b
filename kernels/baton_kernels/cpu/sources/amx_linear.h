// Linear layers with AMX's tiles, for any number of rows. Packed weights are panels of 16 outputs, each one tile of
// [16 words of inputs][16 outputs] after another; a word is two bfloat16, or four codes of 8 bits. Two panels are
// multiplied at a time: neighbours, or a gate and its factor. A sum has the same order, and so the same bits, with any
// number of rows, wherever its row stands.
#pragma once

#include <algorithm>
#include <array>

#include "amx.h"
#include "norms_activations.h"
#include "prefetch.h"
#include "structs.h"
#include "thread_pool.h"

namespace baton {

constexpr int64_t kTileOutputs = 16, kTileRowBytes = 64, kTileBytes = kTileOutputs * kTileRowBytes;
constexpr int64_t kTileInputs = kTileRowBytes / sizeof(Bfloat16);
constexpr int64_t kSumRows = 32, kSumWidth = 2 * kTileOutputs, kSumSize = kSumRows * kSumWidth;   // four tiles of sums
constexpr int64_t kTilesAhead = 2;   // distance of the prefetch where a panel is read once: more drops requests
constexpr int64_t kBlockTiles = 14;  // tiles of a panel that many rows share: two such blocks fit the first cache
constexpr int64_t kPassRows = 512;   // rows that share a pass over a pair of panels
constexpr int64_t kPassBytes = 1 << 20;   // bytes of them: half of the second cache
constexpr int64_t kDeepRows = 256;   // where fewer rows than these fit: a block of inputs at a time, for many panels
static_assert(kLanes == kTileOutputs);

// What a layer multiplies: rows of `depth` times 64 bytes, `x_stride` bytes apart, and panels; and its results, of
// `out_bytes` each, in rows `out_stride` bytes apart.
struct TileOperands {
  const char *x, *weights, *out;
  int64_t x_stride, out_stride, out_bytes, depth, num_rows, out_features, num_threads;
  bool is_gated;
};

// A part of two panels, from the same tile on.
struct PanelPair {
  const char *left, *right;

  PanelPair from(int64_t tile) const { return {left + tile * kTileBytes, right + tile * kTileBytes}; }
};

// A prefetch of two panels.
struct PairPrefetch {
  Prefetch left, right;
};

// The sums of up to 32 rows and two panels, in tiles 0 to 3; rows of x take tiles 4 and 5, weights 6 and 7. Sums have 32
// bits: numbers, or integers.
template <class Layer, bool kTwo>
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

  // Add the products of rows of x, which lie `stride` bytes apart, with `n` tiles of each panel. `prefetch` is
  // into kCache. `rows` are a RowPrefetch.
  template <int kCache, class Rows = NoRows>
  static void add(const char* x, int64_t stride, PanelPair panels, int64_t n, PairPrefetch prefetch, Rows rows = {}) {
    const char* second = x + stride * kTileOutputs;
    for (int64_t k = 0; k < n; ++k) {
      prefetch.left.issue<kCache>();
      rows.issue();
      load_tile<6>(panels.left + k * kTileBytes, kTileRowBytes);
      load_tile<4>(x + k * kTileRowBytes, stride);
      Layer::template multiply<0, 4, 6>();
      prefetch.right.issue<kCache>();
      load_tile<7>(panels.right + k * kTileBytes, kTileRowBytes);
      Layer::template multiply<1, 4, 7>();
      if constexpr (kTwo) {
        load_tile<5>(second + k * kTileRowBytes, stride);
        Layer::template multiply<2, 5, 6>();
        Layer::template multiply<3, 5, 7>();
      }
    }
  }
};

// How the rows and the pairs of panels of a layer are parted: passes of rows times groups of pairs.
struct TileLinearPlan {
  int64_t depth, num_panels, num_pairs, num_passes, pass_rows, num_groups, group_pairs;

  explicit TileLinearPlan(const TileOperands& all)
      : depth(all.depth), num_panels((all.out_features + kTileOutputs - 1) / kTileOutputs) {
    num_pairs = (num_panels + 1) / 2;
    const int64_t fitting = kPassBytes / (depth * kTileRowBytes) / kSumRows * kSumRows;
    const bool is_deep = all.num_rows > std::max(fitting, kSumRows) && fitting < kDeepRows;
    const int64_t most = is_deep ? kDeepRows : std::clamp(fitting, kSumRows, kPassRows);
    num_passes = (all.num_rows + most - 1) / most;
    pass_rows = num_passes ? round_up((all.num_rows + num_passes - 1) / num_passes, kSumRows) : 0;
    const int64_t num_shares = 2 * std::max<int64_t>(all.num_threads, 1);
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

// One pass of rows times one group of pairs of panels. A layer gives its `operands`, the sums to `begin` with, how tiles
// `multiply`, and takes finished sums to `write`.
template <class Layer>
class TileLinear {
 public:
  TileLinear(const Layer& layer, const TileLinearPlan& plan, int64_t index, float* sums)
      : layer_(layer),
        all_(layer.operands()),
        plan_(plan),
        first_row_(index / plan.num_groups * plan.pass_rows),
        num_rows_(std::min(plan.pass_rows, all_.num_rows - first_row_)),
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
          if (k + block_ >= plan_.depth)
            layer_.write(sums_of(pair, tile), first_row_ + tile * kSumRows, count,
                         pair * (all_.is_gated ? kTileOutputs : kSumWidth));
        }
  }

 private:
  template <bool kTwo>
  static void multiply(const TileLinear& own, int64_t k, int64_t pair, int64_t tile) {
    using Sums = TileSums<Layer, kTwo>;
    const int64_t n = std::min(own.block_, own.plan_.depth - k), stride = own.all_.x_stride;
    const char* x = own.all_.x + (own.first_row_ + tile * kSumRows) * stride + k * kTileRowBytes;
    const PanelPair panels = own.panels(pair).from(k), next = own.panels_after(pair, k + n, k);
    float* sums = own.sums_of(pair, tile);
    if (k == 0) own.begin<kTwo>(pair);
    else Sums::load(sums, kSumWidth * sizeof(float));
    if (own.num_tiles_ == 1) {
      const int64_t ahead = std::min(kTilesAhead, n);
      Sums::template add<kFirstCache>(x, stride, panels, n - ahead, prefetch_all(panels.from(ahead)));
      Sums::template add<kFirstCache>(x + (n - ahead) * kTileRowBytes, stride, panels.from(n - ahead), ahead, prefetch_all(next));
    } else {
      const auto share = [&](const char* from) { return share_prefetch(from, kTileBytes, n, own.num_tiles_, tile); };
      const PairPrefetch shares{share(next.left), share(next.right)};
      if (k + n == own.plan_.depth && !own.all_.is_gated)
        Sums::template add<kSecondCache>(x, stride, panels, n, shares, own.prefetch_outputs(pair, tile, n));
      else
        Sums::template add<kSecondCache>(x, stride, panels, n, shares);
    }
    Sums::store(sums);
  }

  static PairPrefetch prefetch_all(PanelPair panels) {
    return {Prefetch(panels.left, kTileBytes), Prefetch(panels.right, kTileBytes)};
  }

  // Where the sums of a pair and a tile of rows go. Gates fill half a line, which comes late for another half: they gain
  // nothing.
  RowPrefetch prefetch_outputs(int64_t pair, int64_t tile, int64_t num_turns) const {
    const int64_t row = first_row_ + tile * kSumRows, count = std::min(kSumRows, num_rows_ - tile * kSumRows);
    const char* from = all_.out + row * all_.out_stride + pair * kSumWidth * all_.out_bytes;
    return RowPrefetch(from, all_.out_stride, count, num_turns);
  }

  // The number of a panel of a pair; the last neighbour may be alone, and is then multiplied twice.
  int64_t panel_number(int64_t pair, int64_t side) const {
    return all_.is_gated ? pair + side * plan_.num_pairs : std::min(2 * pair + side, plan_.num_panels - 1);
  }

  PanelPair panels(int64_t pair) const {
    const int64_t size = plan_.depth * kTileBytes;
    return {all_.weights + panel_number(pair, 0) * size, all_.weights + panel_number(pair, 1) * size};
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

  // Begin the sums of every row: tiles are loaded from one row again and again.
  template <bool kTwo>
  void begin(int64_t pair) const {
    alignas(64) float sums[kSumWidth] = {};
    for (int side = 0; side < 2; ++side)
      layer_.begin(panel_number(pair, side) * kTileOutputs, sums + side * kTileOutputs);
    TileSums<Layer, kTwo>::load(sums, 0);
  }

  const Layer& layer_;
  const TileOperands all_;
  const TileLinearPlan& plan_;
  const int64_t first_row_, num_rows_, begin_, end_, num_tiles_, block_;
  int64_t configured_ = 0;
  float* const sums_;
};

// `scratch` has TileLinearPlan::scratch_size floats for each thread.
template <class Layer>
void amx_linear(const Layer& layer, const TileLinearPlan& plan, float* scratch) {
  const int64_t size = plan.scratch_size();
  parallel_for(layer.operands().num_threads, plan.num_passes * plan.num_groups, 1,
               [&](int64_t index, int64_t thread) noexcept {
                 TileLinear<Layer>(layer, plan, index, scratch + thread * size).run();
               });
}

// Write the first `n` numbers of two vectors: one, both, or a part of them.
inline void write_tile_row(Bfloat16* out, Floats left, Floats right, int64_t n) {
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)right, (__m512)left);
  if (n == kSumWidth) std::memcpy(out, &both, kSumWidth * sizeof *out);
  else if (n == kTileOutputs) std::memcpy(out, &both, kTileOutputs * sizeof *out);
  else std::memcpy(out, &both, n * sizeof *out);
}

inline void write_tile_row(float* out, Floats left, Floats right, int64_t n) {
  const std::array<Floats, 2> both = {left, right};
  std::memcpy(out, &both, n * sizeof *out);
}

// A layer of bfloat16; sums begin with the bias.
struct Bfloat16Layer {
  const PackedLinearArgs& args;

  TileOperands operands() const {
    return {.x = static_cast<const char*>(args.x),
            .weights = static_cast<const char*>(args.packed_weight),
            .out = static_cast<const char*>(args.out),
            .x_stride = args.x_stride * int64_t{sizeof(Bfloat16)},
            .out_stride = output_width(args) * out_bytes(args),
            .out_bytes = out_bytes(args),
            .depth = args.in_features / kTileInputs,
            .num_rows = args.num_rows,
            .out_features = args.out_features,
            .num_threads = args.num_threads,
            .is_gated = args.function != kNotGated};
  }

  template <int kTo, int kRows, int kColumns>
  static void multiply() {
    multiply_tiles<kTo, kRows, kColumns>();
  }

  void begin(int64_t first_output, float* sums) const {
    if (args.bias) copy_row(static_cast<const Bfloat16*>(args.bias) + first_output, sums, kTileOutputs);
  }

  // Write the sums of `count` rows from `row` on as outputs from `column` on.
  void write(const float* sums, int64_t row, int64_t count, int64_t column) const {
    const int64_t width = output_width(args);
    Bfloat16* out = static_cast<Bfloat16*>(args.out) + row * width + column;
    const auto function = static_cast<Function>(args.function);
    for (; count > 0; --count, sums += kSumWidth, out += width) {
      const Floats left = load(sums), right = load(sums + kTileOutputs);
      if (args.function != kNotGated) write_tile_row(out, apply(function, left) * right, right, kTileOutputs);
      else write_tile_row(out, left, right, std::min(kSumWidth, width - column));
    }
  }
};

}  // namespace baton
