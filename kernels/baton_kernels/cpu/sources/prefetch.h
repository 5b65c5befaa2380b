// Prefetching of memory that a loop reads soon.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton {

// The cache that lines are prefetched into, as __builtin_prefetch counts. Requests for the first one wait in its few buffers
// for misses, in which loads wait as well.
constexpr int kFirstCache = 3, kSecondCache = 2;

// A prefetch of a few cache lines at each turn of a loop: CPUs drop requests when too many are outstanding. One made
// without arguments prefetches nothing.
class Prefetch {
 public:
  Prefetch() = default;
  Prefetch(const void* from, int64_t turn_bytes)
      : next_(static_cast<const char*>(from)), until_(next_), turn_bytes_(turn_bytes) {}

  // The state after `num_turns` turns.
  Prefetch after(int64_t num_turns) const { return Prefetch(next_ + num_turns * turn_bytes_, turn_bytes_); }

  // Loops of multiplications are compiled without `issue` as well, which costs time even when disabled.
  bool is_enabled() const { return turn_bytes_ > 0; }

  // Prefetch the next `turn_bytes` bytes.
  template <int kCache = kFirstCache>
  void issue() {
    for (until_ += turn_bytes_; next_ < until_; next_ += kLine) __builtin_prefetch(next_, 0, kCache);
  }

 private:
  static constexpr int64_t kLine = 64;

  const char* next_ = nullptr;
  const char* until_ = nullptr;
  int64_t turn_bytes_ = 0;
};

// A prefetch of the line in each of `num_rows` rows, `stride` bytes apart, that is written after a loop of `num_turns`
// turns: else each store waits for its line.
class RowPrefetch {
 public:
  RowPrefetch(const void* from, int64_t stride, int64_t num_rows, int64_t num_turns)
      : next_(static_cast<const char*>(from)), stride_(stride), left_(num_rows),
        turn_rows_((num_rows + num_turns - 1) / num_turns) {}

  void issue() {
    for (int64_t i = std::min(turn_rows_, left_); i > 0; --i, --left_, next_ += stride_) __builtin_prefetch(next_, 1);
  }

 private:
  const char* next_;
  int64_t stride_, left_, turn_rows_;
};

// In place of a RowPrefetch: nothing.
struct NoRows {
  void issue() const {}
};

// The share of one of several loops of `num_turns` turns that together prefetch `bytes` per turn from `from` on. Where
// even shares would be tiny, the first loops take all.
inline Prefetch share_prefetch(const void* from, int64_t bytes, int64_t num_turns, int64_t num_loops, int64_t loop) {
  constexpr int64_t kLeastBytes = 16;
  const int64_t turn_bytes = std::max(kLeastBytes, (bytes + num_loops - 1) / num_loops);
  return loop * turn_bytes < bytes ? Prefetch(from, turn_bytes).after(loop * num_turns) : Prefetch();
}

}  // namespace baton
