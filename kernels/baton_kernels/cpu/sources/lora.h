// LoRA adapters of a linear layer: each row that has an adapter gets its delta added, all adapters in one call.
// Rows are put in the order of their adapters; a sum has the same order, and so the same bits, beside any other rows.
#pragma once

#include <algorithm>
#include <vector>

#include "packed_linear.h"
#include "structs.h"
#include "thread_pool.h"

namespace baton {

constexpr int kLoraTileRows = kLanes == 16 ? 6 : 3;   // with kLoraRanks sums each, as many as the registers hold
constexpr int64_t kLoraRows = 48;                     // rows of a piece at most
constexpr int64_t kLoraGrain = 1 << 13;               // multiply-adds for which another thread is worth its start

inline int64_t num_panels_of(int64_t size) { return (size + kPanelWidth - 1) / kPanelWidth; }

// Some rows of one adapter.
struct LoraPiece {
  int64_t slot, first, num_rows;   // `first` counts among the ordered rows
  int64_t inner, stride;           // where their numbers by rank begin, and how far rows are apart

  int64_t num_rank_groups() const { return stride / kLoraRanks; }
};

struct LoraPlan {
  const LoraArgs& args;
  std::vector<int64_t> rows;   // those with an adapter of this layer, in the order of slots
  std::vector<LoraPiece> pieces;
  int64_t num_inner = 0, num_rank_groups = 0, num_panels = 0;
  float* inner = nullptr;
  bool is_in_range = true;

  explicit LoraPlan(const LoraArgs& given) : args(given) {
    std::vector<int64_t> starts(args.num_slots + 1);
    for (int64_t row = 0; row < args.num_rows; ++row) {
      is_in_range = is_in_range && args.row_slots[row] < args.num_slots;
      if (is_in_range && has_delta(row)) ++starts[args.row_slots[row] + 1];
    }
    if (!is_in_range) return;
    for (int64_t slot = 0; slot < args.num_slots; ++slot) {
      add_pieces(slot, starts[slot], starts[slot + 1]);
      starts[slot + 1] += starts[slot];
    }
    rows.resize(starts[args.num_slots]);
    for (int64_t row = 0; row < args.num_rows; ++row)
      if (has_delta(row)) rows[starts[args.row_slots[row]]++] = row;
    for (int64_t part = 0; part < args.num_parts; ++part) num_panels += num_panels_of(args.part_sizes[part]);
  }

 private:
  bool has_delta(int64_t row) const { return args.row_slots[row] >= 0 && args.downs[args.row_slots[row]]; }

  void add_pieces(int64_t slot, int64_t first, int64_t num_rows) {
    int64_t num_ranks = 0;
    for (int64_t part = 0; part < args.num_parts; ++part) num_ranks += args.ranks[slot * args.num_parts + part];
    const int64_t stride = round_up(num_ranks, kLoraRanks);
    for (; num_rows > 0; first += kLoraRows, num_rows -= kLoraRows) {
      pieces.push_back({slot, first, std::min(kLoraRows, num_rows), num_inner, stride});
      num_inner += pieces.back().num_rows * stride;
      num_rank_groups = std::max(num_rank_groups, stride / kLoraRanks);
    }
  }
};

// The products of kRows rows with kLoraRanks rows of `down`, whose rows are `stride` numbers long, zeros at their ends.
template <class Number, int kRows>
void shrink_tile(const LoraArgs& args, const int64_t* rows, const typename Packing<Number>::Element* down,
                 int64_t stride, float* inner, int64_t inner_stride) {
  using Element = typename Packing<Number>::Element;
  constexpr int64_t kWidth = kLanes * Packing<Number>::kDepth;
  Floats totals[kRows][kLoraRanks] = {};
  const Element* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = static_cast<const Element*>(args.x) + rows[r] * args.x_stride;
  const auto add = [&](const Element* const* from, int64_t at, int64_t k) {
    decltype(load_numbers(static_cast<const Number*>(nullptr))) factors[kRows];
    for (int r = 0; r < kRows; ++r) factors[r] = load_numbers(reinterpret_cast<const Number*>(from[r] + at));
    for (int j = 0; j < kLoraRanks; ++j) {
      const auto weights = load_numbers(reinterpret_cast<const Number*>(down + j * stride + k));
      for (int r = 0; r < kRows; ++r) totals[r][j] = add_product(totals[r][j], factors[r], weights);
    }
  };
  int64_t k = 0;
  for (; k + kWidth <= args.in_features; k += kWidth) add(x, k, k);
  if (k < args.in_features) {
    Element ends[kRows][kWidth] = {};
    const Element* from[kRows];
    for (int r = 0; r < kRows; ++r) from[r] = ends[r], copy_row(x[r] + k, ends[r], args.in_features - k);
    add(from, 0, k);
  }
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < kLoraRanks; ++j) inner[r * inner_stride + j] = sum_lanes(totals[r][j]);
}

// Rows of a piece times kLoraRanks ranks, in tiles of kRows and then in smaller ones.
template <class Number, int kRows = kLoraTileRows>
void shrink_rows(const LoraArgs& args, const int64_t* rows, int64_t num_rows,
                 const typename Packing<Number>::Element* down, int64_t stride, float* inner, int64_t inner_stride) {
  int64_t row = 0;
  for (; row + kRows <= num_rows; row += kRows)
    shrink_tile<Number, kRows>(args, rows + row, down, stride, inner + row * inner_stride, inner_stride);
  if constexpr (kRows > 1)
    if (row < num_rows)
      shrink_rows<Number, (kRows + 1) / 2>(args, rows + row, num_rows - row, down, stride, inner + row * inner_stride,
                                           inner_stride);
}

// Numbers by rank: those of one group of ranks, of the inputs or, of an embedding, of the tokens.
template <class Number>
void shrink_piece(const LoraPlan& plan, const LoraPiece& piece, int64_t group) {
  using Element = typename Packing<Number>::Element;
  const LoraArgs& args = plan.args;
  const auto* down = reinterpret_cast<const Element*>(args.downs[piece.slot]);
  const int64_t* rows = plan.rows.data() + piece.first;
  float* inner = plan.inner + piece.inner + group * kLoraRanks;
  if (args.token_ids) {
    for (int64_t r = 0; r < piece.num_rows; ++r)
      copy_row(down + args.token_ids[rows[r]] * piece.stride + group * kLoraRanks, inner + r * piece.stride, kLoraRanks);
    return;
  }
  const int64_t stride = round_up(args.in_features, kLoraInputs);
  shrink_rows<Number>(args, rows, piece.num_rows, down + group * kLoraRanks * stride, stride, inner, piece.stride);
}

// Add the products of kRows rows of `inner` with a panel to `y`; a row's numbers are `inner_stride` apart.
template <class Element, int kRows>
void expand_tile(Element* const* y, const float* inner, int64_t inner_stride, const Element* up, int64_t rank) {
  constexpr int kVectors = kPanelWidth / kLanes;
  Floats totals[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVectors; ++i) totals[r][i] = load(y[r] + i * kLanes);
  for (int64_t k = 0; k < rank; ++k, up += kPanelWidth) {
    for (int i = 0; i < kVectors; ++i) {
      const Floats column = load(up + i * kLanes);
      for (int r = 0; r < kRows; ++r) totals[r][i] += splat(inner[r * inner_stride + k]) * column;
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVectors; ++i) store(y[r] + i * kLanes, totals[r][i]);
}

template <class Element, int kRows = kLoraTileRows>
void expand_rows(const LoraArgs& args, const int64_t* rows, int64_t num_rows, int64_t column, int64_t width,
                 const float* inner, int64_t inner_stride, const Element* up, int64_t rank) {
  int64_t row = 0;
  for (; row + kRows <= num_rows; row += kRows) {
    Element* y[kRows];
    for (int r = 0; r < kRows; ++r) y[r] = static_cast<Element*>(args.y) + rows[row + r] * args.y_stride + column;
    if (width == kPanelWidth) {
      expand_tile<Element, kRows>(y, inner + row * inner_stride, inner_stride, up, rank);
    } else {
      Element ends[kRows][kPanelWidth] = {};
      Element* to[kRows];
      for (int r = 0; r < kRows; ++r) to[r] = ends[r], copy_row(y[r], ends[r], width);
      expand_tile<Element, kRows>(to, inner + row * inner_stride, inner_stride, up, rank);
      for (int r = 0; r < kRows; ++r) copy_row(ends[r], y[r], width);
    }
  }
  if constexpr (kRows > 1)
    if (row < num_rows)
      expand_rows<Element, (kRows + 1) / 2>(args, rows + row, num_rows - row, column, width,
                                            inner + row * inner_stride, inner_stride, up, rank);
}

// Add to one panel of the outputs.
template <class Element>
void expand_piece(const LoraPlan& plan, const LoraPiece& piece, int64_t panel) {
  const LoraArgs& args = plan.args;
  const int32_t* ranks = args.ranks + piece.slot * args.num_parts;
  const auto* up = reinterpret_cast<const Element*>(args.ups[piece.slot]);
  const float* inner = plan.inner + piece.inner;
  int64_t column = 0, part = 0;
  for (int64_t here; panel >= (here = num_panels_of(args.part_sizes[part])); ++part) {
    panel -= here, column += args.part_sizes[part];
    up += here * kPanelWidth * ranks[part], inner += ranks[part];
  }
  const int64_t rank = ranks[part], width = std::min<int64_t>(kPanelWidth, args.part_sizes[part] - panel * kPanelWidth);
  if (!rank) return;
  expand_rows<Element>(args, plan.rows.data() + piece.first, piece.num_rows, column + panel * kPanelWidth, width, inner,
                       piece.stride, up + panel * kPanelWidth * rank, rank);
}

template <class Number>
void add_lora(const LoraPlan& plan) {
  using Element = typename Packing<Number>::Element;
  const int64_t num_pieces = plan.pieces.size(), most = std::min<int64_t>(plan.rows.size(), kLoraRows);
  const auto grain = [&](int64_t size) { return kLoraGrain / std::max<int64_t>(1, most * size); };
  const int64_t num_groups = plan.num_rank_groups, in_features = plan.args.token_ids ? 1 : plan.args.in_features;
  parallel_for(plan.args.num_threads, num_pieces * num_groups, grain(in_features * kLoraRanks),
               [&](int64_t index, int64_t) noexcept {
                 const LoraPiece& piece = plan.pieces[index / num_groups];
                 if (index % num_groups < piece.num_rank_groups())
                   shrink_piece<Number>(plan, piece, index % num_groups);
               });
  parallel_for(plan.args.num_threads, num_pieces * plan.num_panels, grain(num_groups * kLoraRanks * kPanelWidth),
               [&](int64_t index, int64_t) noexcept {
                 expand_piece<Element>(plan, plan.pieces[index / plan.num_panels], index % plan.num_panels);
               });
}

}  // namespace baton
