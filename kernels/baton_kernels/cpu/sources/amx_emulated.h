// AMX's tile registers in plain C++, for emulated builds; the same functions as in amx.h, with the same bits.
// Source: Intel SDM, volume 2 (TDPBF16PS, TDPBSSD); the order of sums was compared with hardware.
#pragma once

#include "avx512_emulated.h"

namespace baton::emulation {

struct Tiles {
  uint8_t configuration[64];
  alignas(64) uint8_t rows[8][16][64];

  int row_bytes(int tile) const { return configuration[16 + 2 * tile] + 256 * configuration[17 + 2 * tile]; }
  int num_rows(int tile) const { return configuration[48 + tile]; }
};

inline thread_local Tiles tiles{};

}  // namespace baton::emulation

namespace baton {

inline bool request_tiles() { return true; }

inline void configure_tiles(const TileConfiguration& all) {
  emulation::tiles = {};
  std::memcpy(emulation::tiles.configuration, &all, sizeof all);
}

inline TileConfiguration tile_configuration() {
  TileConfiguration all;
  std::memcpy(&all, emulation::tiles.configuration, sizeof all);
  return all;
}

inline void release_tiles() { emulation::tiles = {}; }

template <int kTile>
inline void zero_tile() {
  std::memset(emulation::tiles.rows[kTile], 0, sizeof emulation::tiles.rows[kTile]);
}

template <int kTile>
inline void load_tile(const void* from, int64_t stride) {
  emulation::Tiles& all = emulation::tiles;
  zero_tile<kTile>();
  for (int row = 0; row < all.num_rows(kTile); ++row)
    std::memcpy(all.rows[kTile][row], static_cast<const char*>(from) + row * stride, all.row_bytes(kTile));
}

template <int kTile>
inline void store_tile(void* to, int64_t stride) {
  const emulation::Tiles& all = emulation::tiles;
  for (int row = 0; row < all.num_rows(kTile); ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, all.rows[kTile][row], all.row_bytes(kTile));
}

// The even and the odd products of a row are summed apart, each in one chain of fused multiply-adds from 0; then the two
// are added, and their total to the old sum.
template <int kTo, int kRows, int kColumns>
inline void multiply_tiles() {
  using namespace emulation;
  for (int m = 0; m < tiles.num_rows(kTo); ++m) {
    Floats16 even{}, odd{}, sum;
    for (int k = 0; k < tiles.row_bytes(kRows) / 4; ++k) {
      int32_t pair;
      Words16 columns;
      std::memcpy(&pair, &tiles.rows[kRows][m][4 * k], sizeof pair);
      std::memcpy(&columns, tiles.rows[kColumns][k], sizeof columns);
      const Words16 factors = (Words16)(pair - Ints16{});
      even = add_products(even_numbers(factors), even_numbers(columns), even);
      odd = add_products(odd_numbers(factors), odd_numbers(columns), odd);
    }
    std::memcpy(&sum, tiles.rows[kTo][m], sizeof sum);
    const Floats16 both = (Floats16)flush((Words16)(even + odd));
    const Words16 total = flush((Words16)((Floats16)flush((Words16)sum) + both));
    std::memcpy(tiles.rows[kTo][m], &total, tiles.row_bytes(kTo));
  }
}

template <int kTo, int kRows, int kColumns>
inline void multiply_code_tiles() {
  using namespace emulation;
  for (int m = 0; m < tiles.num_rows(kTo); ++m) {
    int32_t sums[16];
    std::memcpy(sums, tiles.rows[kTo][m], sizeof sums);
    const auto* codes = reinterpret_cast<const int8_t*>(tiles.rows[kRows][m]);
    for (int k = 0; k < tiles.row_bytes(kRows); ++k) {
      const auto* columns = reinterpret_cast<const int8_t*>(tiles.rows[kColumns][k / 4]);
      for (int n = 0; n < 16; ++n) sums[n] += codes[k] * columns[4 * n + k % 4];
    }
    std::memcpy(tiles.rows[kTo][m], sums, tiles.row_bytes(kTo));
  }
}

}  // namespace baton
