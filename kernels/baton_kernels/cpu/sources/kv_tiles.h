// Reads of a split's K or V in tiles of consecutive tokens, through the block table.
#pragma once

#include <type_traits>

#include "decode_attention.h"
#include "prefetch.h"

namespace baton {

// Rows of consecutive tokens, `stride` elements apart.
template <class Element>
struct Tile {
  const Element* rows;
  int64_t stride;
};

// The prefetch, over `num_turns` turns, of tokens [at, at + n) of a split's K or V, which begins at `base`. It ends with
// the block.
template <class Stored>
Prefetch prefetch_tile(const Split& split, const void* base, int64_t at, int64_t n, int64_t num_turns) {
  const int64_t position = split.begin + at, size = split.row.block_size();
  if (position >= split.end) return {};
  n = std::min({n, split.end - position, size - position % size});
  const int64_t num_bytes = n * split.row.dim() * int64_t{sizeof(Stored)};
  return {split.row.cached<Stored>(base, position), (num_bytes + num_turns - 1) / num_turns};
}

// Reads tiles of a cache of Stored as rows of Read, which are `width` wide with zeros behind head_dim.
template <class Stored, class Read>
class TileReader {
 public:
  // `scratch` holds `capacity` rows of zeros.
  TileReader(const Split& split, const void* base, Read* scratch, int64_t capacity, int64_t width)
      : split_(split), base_(base), scratch_(scratch), capacity_(capacity), width_(width) {}

  // Rows [position, position + n) as rows [at, at + n) of a tile that is valid until the next call. Its other
  // rows up to the capacity may be read too: they hold finite numbers without meaning.
  Tile<Read> read(int64_t position, int64_t n, int64_t at = 0) {
    const int64_t dim = split_.row.dim(), size = split_.row.block_size();
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
  const Stored* row(int64_t position) const { return split_.row.cached<Stored>(base_, position); }

  const Split& split_;
  const void* base_;
  Read* scratch_;
  int64_t capacity_, width_;
};

}  // namespace baton
