// Asking memory early for what will be computed with.
#pragma once

#include <cstdint>

namespace baton {

// Asks for a few lines at each turn of a loop: of many requests at once CPUs drop those that they have no place for.
class Early {
 public:
  Early() = default;
  Early(const void* from, int64_t step) : next_(static_cast<const char*>(from)), until_(next_), step_(step) {}

  // As it is after so many turns.
  Early after(int64_t num_turns) const { return Early(next_ + num_turns * step_, step_); }

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

}  // namespace baton
