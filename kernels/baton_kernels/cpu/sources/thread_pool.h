// Parallel loops. Each calling thread has a thread pool of its own. Its workers spin for a while after a loop, since the
// next one of a step follows within microseconds and waking a thread takes tens of them. They yield while they spin,
// and the caller waits for no worker that has not begun: so a machine with more threads than cores loses little, where
// OpenMP's barriers lose most of their time.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton {

// A loop whose indices are distributed over threads.
struct Loop {
  void (*run)(const Loop&, int64_t thread) = nullptr;
  const void* body = nullptr;
  int64_t num_threads = 0, count = 0, grain = 1;
  std::atomic<int64_t>* next = nullptr;
};

// The workers of one calling thread.
class ThreadPool {
 public:
  ThreadPool() = default;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    waking_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // False in a fork, which has none of the threads.
  bool is_own_process() const { return getpid() == process_; }

  void run(const Loop& loop) {
    start(loop.num_threads - 1);
    loop_ = loop;
    state_ = ((state_ >> kEpochBit) + 1) << kEpochBit | kOpen;
    if (num_asleep_ > 0) {
      const std::lock_guard lock(mutex_);
      waking_.notify_all();
    }
    loop.run(loop, 0);
    state_ &= ~kOpen;
    for (int64_t turn = 0; state_ & kInside; ++turn) rest(turn);
  }

 private:
  // Bits of the state: the number of workers inside the loop, an open flag for more, and the loop's epoch.
  static constexpr uint64_t kInside = 0xffff, kOpen = 0x10000;
  static constexpr int kEpochBit = 17;
  static constexpr int64_t kTurns = 32;   // turns between yields and checks of the clock
  static constexpr std::chrono::microseconds kAwake{500};

  static void rest(int64_t turn) {
    if (turn % kTurns == kTurns - 1) sched_yield();
#if defined(__x86_64__)
    else _mm_pause();
#endif
  }

  // Start workers; fewer where memory or threads are lacking.
  void start(int64_t number) {
    try {
      while (int64_t(threads_.size()) < number)
        threads_.emplace_back([this, own = int64_t(threads_.size()) + 1] { work(own); });
    } catch (const std::exception&) {
    }
  }

  void work(int64_t own) {
    for (uint64_t seen = 0; wait_for_other(seen);) {
      uint64_t state = state_;
      seen = state >> kEpochBit;
      while (state & kOpen && state >> kEpochBit == seen)
        if (state_.compare_exchange_weak(state, state + 1)) {
          if (own < loop_.num_threads) loop_.run(loop_, own);
          --state_;
          break;
        }
    }
  }

  // Wait for a loop of another epoch than `seen`; false at shutdown.
  bool wait_for_other(uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + kAwake;
    for (int64_t turn = 0; state_ >> kEpochBit == seen; ++turn) {
      rest(turn);
      if (turn % kTurns == 0 && std::chrono::steady_clock::now() > until) return sleep(seen);
    }
    return true;
  }

  bool sleep(uint64_t seen) {
    std::unique_lock lock(mutex_);
    ++num_asleep_;
    waking_.wait(lock, [&] { return has_ended_ || state_ >> kEpochBit != seen; });
    --num_asleep_;
    return !has_ended_;
  }

  const pid_t process_ = getpid();
  alignas(64) std::atomic<uint64_t> state_ = 0;
  std::atomic<int64_t> num_asleep_ = 0;
  Loop loop_;              // written while nobody is inside
  std::mutex mutex_;
  std::condition_variable waking_;
  bool has_ended_ = false;
  std::vector<std::thread> threads_;
};

// Return the pool of this thread, which ends with it; null without memory.
inline ThreadPool* thread_pool() noexcept {
  struct Owner {
    std::unique_ptr<ThreadPool> pool;
    ~Owner() {
      if (pool && !pool->is_own_process()) pool.release();
    }
  };
  static thread_local Owner owner;
  if (owner.pool && !owner.pool->is_own_process()) owner.pool.release();
  if (!owner.pool) owner.pool.reset(new (std::nothrow) ThreadPool);
  return owner.pool.get();
}

// Call body(index, thread) once for each index of [0, count) on up to `num_threads` threads numbered from 0; return
// when all are done. Not to be called from a body. A thread takes many consecutive indices while many are left, for
// locality, and then fewer, for balance, but `grain` at least. A body must not throw: the workers would continue a loop
// whose frame is gone.
template <class Body>
void parallel_for(int64_t num_threads, int64_t count, int64_t grain, const Body& body) noexcept {
  static_assert(std::is_nothrow_invocable_v<const Body&, int64_t, int64_t>, "a body is noexcept");
  std::atomic<int64_t> next = 0;
  const auto run = [](const Loop& loop, int64_t thread) {
    const Body& body = *static_cast<const Body*>(loop.body);
    for (int64_t start = *loop.next; start < loop.count;) {
      const int64_t share = (loop.count - start) / (2 * loop.num_threads);
      const int64_t end = std::min(start + std::max(loop.grain, share), loop.count);
      if (!loop.next->compare_exchange_weak(start, end)) continue;
      for (int64_t index = start; index < end; ++index) body(index, thread);
      start = *loop.next;
    }
  };
  const Loop loop{run, &body, std::max<int64_t>(num_threads, 1), count, std::max<int64_t>(grain, 1), &next};
  ThreadPool* pool = num_threads > 1 && count > loop.grain ? thread_pool() : nullptr;
  if (pool) pool->run(loop);
  else run(loop, 0);
}

}  // namespace baton
