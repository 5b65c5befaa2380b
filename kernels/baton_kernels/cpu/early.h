// Asking memory early for what will be computed with.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton {

// Asks for a few lines at each turn of a loop: of many requests at once CPUs drop those that they have no place for.
// One made without arguments asks for nothing.
class Early {
 public:
  Early() = default;
  Early(const void* from, int64_t step) : next_(static_cast<const char*>(from)), until_(next_), step_(step) {}

  // As it is after so many turns.
  Early after(int64_t num_turns) const { return Early(next_ + num_turns * step_, step_); }

  // Loops of multiplications are compiled without `ask` as well: even one in vain costs them time.
  bool asks() const { return step_ > 0; }

  // Ask for the next `step` bytes.
  void ask() {
    for (until_ += step_; next_ < until_; next_ += kLine) __builtin_prefetch(next_);
  }

 private:
  static constexpr int64_t kLine = 64;

  const char* next_ = nullptr;
  const char* until_ = nullptr;
  int64_t step_ = 0;
};

// What one of several loops of `num_turns` turns asks for, if together they ask for `bytes` per turn from `from` on.
// Where even shares would be tiny the first loops take it all.
inline Early share_early(const void* from, int64_t bytes, int64_t num_turns, int64_t num_loops, int64_t loop) {
  constexpr int64_t kLeast = 16;   // bytes
  const int64_t step = std::max(kLeast, (bytes + num_loops - 1) / num_loops);
  return loop * step < bytes ? Early(from, step).after(loop * num_turns) : Early();
}

}  // namespace baton
