// Keys for attention of prompts with AMX, in tiles of 32: found where they lie in a cache with V transposed, or read
// into memory of the thread.
#pragma once

#include <algorithm>
#include <array>

#include "attention_bfloat16_dot.h"
#include "structs.h"
#include "varlen_attention.h"

namespace baton {

constexpr int64_t kTileLanes = 16;    // rows side by side: a column
constexpr int64_t kTileKeys = 32;     // keys of a tile, and dimensions in a row of it

// Up to 32 numbers of a row from `d` on, with zeros behind its `dim`.
inline __m512i row_part(const Bfloat16* row, int64_t d, int64_t dim) {
  if (d + kTileKeys <= dim) return _mm512_loadu_si512(row + d);
  Bfloat16 part[kTileKeys] = {};
  std::copy(row + d, row + dim, part);
  return _mm512_loadu_si512(part);
}

// Copy `n` numbers of each of `num_rows` rows.
template <class Stored>
void copy_key_rows(const Stored* from, int64_t from_stride, Bfloat16* to, int64_t to_stride, int64_t num_rows,
                   int64_t n) {
  if (n == kTileKeys)
    for (int64_t row = 0; row < num_rows; ++row) copy_row(from + row * from_stride, to + row * to_stride, kTileKeys);
  else
    for (int64_t row = 0; row < num_rows; ++row) copy_row(from + row * from_stride, to + row * to_stride, n);
}

// Transpose up to 32 rows of up to 32 numbers; the rest are zeros.
inline void transpose_rows(const Bfloat16* rows, int64_t stride, int64_t num_rows, int64_t d, int64_t dim,
                           Bfloat16* to) {
  alignas(64) static constexpr auto kOrders = [] {   // the first numbers of pairs, and the second ones
    std::array<std::array<uint16_t, 32>, 2> orders{};
    for (int side = 0; side < 2; ++side)
      for (int i = 0; i < 32; ++i) orders[side][i] = uint16_t(2 * i + side);
    return orders;
  }();
  Pair pairs[2][16][kTileLanes];
  for (int half = 0; half < 2; ++half) {
    __m512i parts[kTileLanes];
    for (int i = 0; i < kTileLanes; ++i) {
      const int64_t row = half * kTileLanes + i;
      parts[i] = row < num_rows ? row_part(rows + row * stride, d, dim) : _mm512_setzero_si512();
    }
    transpose(parts, pairs[half][0]);
  }
  for (int pair = 0; pair < 16; ++pair) {
    const __m512i left = _mm512_loadu_si512(pairs[0][pair]), right = _mm512_loadu_si512(pairs[1][pair]);
    for (int side = 0; side < 2; ++side) {
      const __m512i order = _mm512_load_si512(kOrders[side].data());
      _mm512_storeu_si512(to + (2 * pair + side) * kTileKeys, _mm512_permutex2var_epi16(left, order, right));
    }
  }
}

// 32 keys: K as rows, V transposed; strides are in numbers.
struct KeyTile {
  const Bfloat16 *k, *v;
  int64_t k_stride, v_stride;
};

// The keys of sequences in a cache, of which a row sees those up to its own.
template <class Stored>
struct CachedKeys {
  const VarlenAttentionArgs& args;

  explicit CachedKeys(const VarlenAttentionArgs& args) : args(args) {}

  // The number of keys of a tile's sequence that its rows see.
  int64_t end_of(const QueryTile& tile) const { return tile.position + tile.num_tokens; }

  // Set `to` to the tile of keys from `position` on where it lies in the cache; false where it must be read.
  bool find(const QueryTile& tile, int64_t position, int64_t width, KeyTile& to) const {
    const KvLayer& layer = args.layer;
    const int64_t size = layer.block_size, dim = layer.head_dim;
    if (!std::is_same_v<Stored, Bfloat16> || size % kTileKeys || dim != width) return false;
    const int64_t origin = origin_of(tile, position), offset = position % size;
    to = {static_cast<const Bfloat16*>(layer.k) + origin + offset * dim,
          static_cast<const Bfloat16*>(layer.v) + origin + offset, dim, size};
    return true;
  }

  // Read keys [first, last) of a tile to places from 0 on: K [places, width], V [width, 32].
  void read(const QueryTile& tile, int64_t first, int64_t last, int64_t width, Bfloat16* k, Bfloat16* v) const {
    const KvLayer& layer = args.layer;
    const int64_t size = layer.block_size, dim = layer.head_dim;
    for (int64_t n; first < last; first += n, k += n * width, v += n) {
      const int64_t offset = first % size, origin = origin_of(tile, first);
      n = std::min(last - first, size - offset);
      const auto *from_k = static_cast<const Stored*>(layer.k) + origin + offset * dim;
      if (width == dim) copy_row(from_k, k, n * dim);
      else copy_key_rows(from_k, dim, k, width, n, dim);
      copy_key_rows(static_cast<const Stored*>(layer.v) + origin + offset, size, v, kTileKeys, dim, n);
    }
  }

 private:
  // The place of the KV head in the block of `position`, in elements of the pool.
  int64_t origin_of(const QueryTile& tile, int64_t position) const {
    const int64_t size = args.layer.block_size, block = args.tables[tile.seq * args.table_stride + position / size];
    return block * args.layer.block_stride + tile.kv_head * size * args.layer.head_dim;
  }
};

// The keys of prompts that no cache holds, all of which a row may see.
struct PromptKeys {
  const BidirectionalAttentionArgs& args;

  int64_t end_of(const QueryTile& tile) const { return args.query_start[tile.seq + 1] - args.query_start[tile.seq]; }

  bool find(const QueryTile&, int64_t, int64_t, KeyTile&) const { return false; }

  // As CachedKeys::read.
  void read(const QueryTile& tile, int64_t first, int64_t last, int64_t width, Bfloat16* k, Bfloat16* v) const {
    const int64_t dim = args.head_dim, token = args.query_start[tile.seq] + first, head = tile.kv_head * dim;
    const auto* from_k = static_cast<const Bfloat16*>(args.k) + token * args.k_stride + head;
    copy_key_rows(from_k, args.k_stride, k, width, last - first, dim);
    const auto* from = static_cast<const Bfloat16*>(args.v) + token * args.v_stride + head;
    for (int64_t d = 0; d < width; d += kTileKeys)
      transpose_rows(from, args.v_stride, last - first, d, dim, v + d * kTileKeys);
  }
};

}  // namespace baton
