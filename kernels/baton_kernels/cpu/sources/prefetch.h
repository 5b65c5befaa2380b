// Prefetching of memory that a loop reads soon.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton {

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

  // Prefetch the next `turn_bytes` bytes into the first cache, or with a locality of 2 into the second.
  template <int kLocality = 3>
  void issue() {
    for (until_ += turn_bytes_; next_ < until_; next_ += kLine) __builtin_prefetch(next_, 0, kLocality);
  }

 private:
  static constexpr int64_t kLine = 64;

  const char* next_ = nullptr;
  const char* until_ = nullptr;
  int64_t turn_bytes_ = 0;
};

// The share of one of several loops of `num_turns` turns that together prefetch `bytes` per turn from `from` on. Where
// even shares would be tiny, the first loops take all.
inline Prefetch share_prefetch(const void* from, int64_t bytes, int64_t num_turns, int64_t num_loops, int64_t loop) {
  constexpr int64_t kLeastBytes = 16;
  const int64_t turn_bytes = std::max(kLeastBytes, (bytes + num_loops - 1) / num_loops);
  return loop * turn_bytes < bytes ? Prefetch(from, turn_bytes).after(loop * num_turns) : Prefetch();
}

}  // namespace baton
