// Reading a part's K or V in tiles of consecutive tokens, through the block table.
#pragma once

#include <type_traits>

#include "decode.h"

namespace baton {

// Rows of consecutive tokens, `stride` elements apart.
template <class Element>
struct Tile {
  const Element* rows;
  int64_t stride;
};

// Tiles of a cache of Stored, given as rows of Read, which are `width` wide with zeros behind head_dim.
template <class Stored, class Read>
class TileReader {
 public:
  // `scratch` holds `capacity` rows of zeros.
  TileReader(const Part& part, const void* base, Read* scratch, int64_t capacity, int64_t width)
      : part_(part), base_(static_cast<const Stored*>(base)), scratch_(scratch), capacity_(capacity),
        width_(width) {}

  // Rows [position, position + n) as rows [at, at + n) of a tile that is valid until the next call. Its other
  // rows up to the capacity may be read too: they hold finite numbers without meaning.
  Tile<Read> read(int64_t position, int64_t n, int64_t at = 0) {
    const int64_t dim = part_.row.dim(), size = part_.row.block_size();
    prefetch(position + n, n);
    if constexpr (std::is_same_v<Stored, Read>) {
      if (n == capacity_ && position % size + n <= size && dim == width_)
        return {row(position), dim};
    }
    for (int64_t i = 0; i < n;) {
      const Stored* from = row(position + i);
      const int64_t stop = std::min(n, i + size - (position + i) % size);
      for (; i < stop; ++i, from += dim) copy_row(from, scratch_ + (at + i) * width_, dim);
    }
    return {scratch_, width_};
  }

 private:
  const Stored* row(int64_t position) const {
    return base_ + part_.row.origin(position) + position % part_.row.block_size() * part_.row.dim();
  }

  // Ask for the next tile: it may lie in another block, where the hardware does not look ahead.
  void prefetch(int64_t position, int64_t n) const {
    if (position >= part_.end) return;
    n = std::min({n, part_.end - position, part_.row.block_size() - position % part_.row.block_size()});
    const auto* from = reinterpret_cast<const char*>(row(position));
    const int64_t num_bytes = n * part_.row.dim() * int64_t{sizeof(Stored)};
    for (int64_t at = 0; at < num_bytes; at += 64) __builtin_prefetch(from + at);
  }

  const Part& part_;
  const Stored* base_;
  Read* scratch_;
  int64_t capacity_, width_;
};

}  // namespace baton
