// AMX tiles and AVX512-BF16 in plain C++, for CPUs that have AVX-512 alone: included ahead of the kernels,
// it replaces the intrinsics that they use.
#pragma once

#include <immintrin.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace emulation {

inline float widen(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Words {
  uint16_t at[32];
};

struct Floats {
  float at[16];
};

template <class To, class From>
inline To cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline __m512 dot(__m512 sum, __m512bh a, __m512bh b) {
  Floats sums = cast<Floats>(sum);
  const Words x = cast<Words>(a), y = cast<Words>(b);
  for (int i = 0; i < 32; ++i) sums.at[i / 2] += widen(x.at[i]) * widen(y.at[i]);
  return cast<__m512>(sums);
}

inline __m512bh narrow_two(__m512 high, __m512 low) {
  const Floats x = cast<Floats>(low), y = cast<Floats>(high);
  Words words;
  for (int i = 0; i < 16; ++i) words.at[i] = narrow(x.at[i]), words.at[16 + i] = narrow(y.at[i]);
  return cast<__m512bh>(words);
}

struct Configuration {
  uint8_t bytes[64];
  int row_bytes(int tile) const { return bytes[16 + 2 * tile] + 256 * bytes[17 + 2 * tile]; }
  int num_rows(int tile) const { return bytes[48 + tile]; }
};

inline thread_local Configuration configuration{};
inline thread_local char tiles[8][16][64];

inline void zero(int tile) { std::memset(tiles[tile], 0, sizeof tiles[tile]); }

inline void configure(const void* from) {
  std::memcpy(&configuration, from, 64);
  for (int tile = 0; tile < 8; ++tile) zero(tile);
}

inline void load(int tile, const void* from, long stride) {
  zero(tile);
  for (int row = 0; row < configuration.num_rows(tile); ++row)
    std::memcpy(tiles[tile][row], static_cast<const char*>(from) + row * stride, configuration.row_bytes(tile));
}

inline void store(int tile, void* to, long stride) {
  for (int row = 0; row < configuration.num_rows(tile); ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile][row], configuration.row_bytes(tile));
}

inline void multiply(int to, int a, int b) {
  for (int m = 0; m < configuration.num_rows(to); ++m) {
    for (int n = 0; n < configuration.row_bytes(to) / 4; ++n) {
      float sum;
      std::memcpy(&sum, &tiles[to][m][4 * n], 4);
      for (int k = 0; k < configuration.row_bytes(a) / 4; ++k) {
        uint16_t x[2], y[2];
        std::memcpy(x, &tiles[a][m][4 * k], 4);
        std::memcpy(y, &tiles[b][k][4 * n], 4);
        sum += widen(x[0]) * widen(y[0]) + widen(x[1]) * widen(y[1]);
      }
      std::memcpy(&tiles[to][m][4 * n], &sum, 4);
    }
  }
}

}  // namespace emulation

#undef _tile_loadconfig
#undef _tile_storeconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) emulation::configure(from)
#define _tile_storeconfig(to) std::memcpy(to, &emulation::configuration, 64)
#define _tile_release() emulation::configure(&(const emulation::Configuration&)emulation::Configuration{})
#define _tile_zero(tile) emulation::zero(tile)
#define _tile_loadd(tile, from, stride) emulation::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulation::store(tile, to, stride)
#define _tile_dpbf16ps(to, a, b) emulation::multiply(to, a, b)
#define _mm512_dpbf16_ps(sum, a, b) emulation::dot(sum, a, b)
#define _mm512_cvtne2ps_pbh(high, low) emulation::narrow_two(high, low)
#define syscall(...) 0
