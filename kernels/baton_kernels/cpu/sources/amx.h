// AMX's tile registers. GCC 12 and older declare less memory than these instructions touch: a configuration loses the
// stores that fill it, and a tile may be loaded before what it reads is written. So each statement here declares its
// memory itself, and nothing that touches memory moves across it.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace baton {

// Palette 1 of the architecture: the width and height of each tile.
struct alignas(64) TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t num_rows[16];
};
static_assert(sizeof(TileConfiguration) == 64);

}  // namespace baton

#if BATON_EMULATED
#include "amx_emulated.h"
#else

namespace baton {

// Ask the kernel for the tile registers, once per process. True when they may be used.
inline bool request_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

inline void configure_tiles(const TileConfiguration& all) { asm volatile("ldtilecfg %0" ::"m"(all) : "memory"); }

// Return the configuration; all zeros where no tile is configured.
inline TileConfiguration tile_configuration() {
  TileConfiguration all;
  asm volatile("sttilecfg %0" : "=m"(all)::"memory");
  return all;
}

inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

template <int kTile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile) : "memory");
}

// Rows lie `stride` bytes apart.
template <int kTile>
inline void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
}

template <int kTile>
inline void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
}

// kTo += kRows @ kColumns, of pairs of bfloat16.
template <int kTo, int kRows, int kColumns>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kRows), "i"(kColumns) : "memory");
}

// The same of quads of signed integers of 8 bits, summed in 32 bits.
template <int kTo, int kRows, int kColumns>
inline void multiply_code_tiles() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kRows), "i"(kColumns) : "memory");
}

}  // namespace baton

#endif

namespace baton {

// A configuration of all eight tiles as 16 rows of 64 bytes. The destructor restores the configuration of other code of this thread.
class TileSession {
 public:
  TileSession() : before_(tile_configuration()) {
    TileConfiguration all{};
    all.palette = 1;
    for (int tile = 0; tile < 8; ++tile) all.row_bytes[tile] = 64, all.num_rows[tile] = 16;
    configure_tiles(all);
  }
  ~TileSession() {
    if (before_.palette) configure_tiles(before_);
    else release_tiles();
  }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  TileConfiguration before_;
};

}  // namespace baton
