// Exchanges of tensors between the processes of one machine, through memory that they share.
//
// Every call takes turns, a slot's worth of bytes in each. In a turn a rank first waits until all have begun the turn
// before: then nobody reads the half that was written two turns ago.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstring>

#include "structs.h"
#include "vectors.h"

namespace baton {

struct alignas(64) TurnFlag {
  std::atomic<int64_t> turn;
  std::atomic<int32_t> sleepers;  // ranks that are to be woken
};

constexpr int kYieldsBeforeSleep = 4096;
constexpr int64_t kLongYieldNs = 300000;
constexpr int64_t kSleepNs = 1000000;
constexpr int kCrowdedWaits = 256;

inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000 + time.tv_nsec;
}

inline void set_turn(TurnFlag& flag, int64_t turn) {
  flag.turn.store(turn);
  if (flag.sleepers.load()) syscall(SYS_futex, &flag.turn, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleep until the flag changes from a turn that is too early, for a while at most: nobody wakes whoever is to give up.
inline void sleep_until_set(TurnFlag& flag, int64_t turn, int64_t longest_ns) {
  flag.sleepers.fetch_add(1);
  const int64_t seen = flag.turn.load();
  const timespec pause{0, longest_ns};
  // A futex is 32 bits: the lower half of the turn, which comes first.
  if (seen < turn) syscall(SYS_futex, &flag.turn, FUTEX_WAIT, static_cast<int32_t>(seen), &pause, nullptr, 0);
  flag.sleepers.fetch_sub(1);
}

// Wait until the flag has reached a turn; false if its rank is lost. Cores may be shared with who is waited for, so it
// yields, and after a while it sleeps. A yield that lasts was to another process, of however low a priority: for some
// time a rank sleeps at once then, as whoever is woken comes before that process.
inline bool wait_for(const int64_t* aborted_flag, int64_t deadline_ns, TurnFlag& flag, int64_t turn,
                     int64_t longest_sleep_ns) {
  static thread_local int crowded_waits = 0;
  if (flag.turn.load(std::memory_order_acquire) >= turn) return true;
  const auto* aborted = reinterpret_cast<const std::atomic<int64_t>*>(aborted_flag);
  int64_t now = now_ns();
  const int64_t end = now + deadline_ns;
  if (crowded_waits > 0) --crowded_waits;
  for (int64_t round = 0; flag.turn.load(std::memory_order_acquire) < turn; ++round) {
    // A yield may last a whole time slice of another process: the deadline holds for them, too.
    if (aborted->load(std::memory_order_relaxed) || now > end) return false;
    const int64_t before = now;
    if (crowded_waits > 0 || round >= kYieldsBeforeSleep) {
      sleep_until_set(flag, turn, longest_sleep_ns);
      now = now_ns();
    } else {
      sched_yield();
      now = now_ns();
      if (now - before > kLongYieldNs) crowded_waits = kCrowdedWaits;
    }
  }
  return true;
}

inline bool wait_for(const Meeting& meeting, TurnFlag& flag, int64_t turn) {
  return wait_for(meeting.aborted, meeting.deadline_ns, flag, turn, kSleepNs);
}

template <class Number>
void sum_slots(const char* slots, int64_t slot_bytes, int64_t size, int64_t num_bytes, Number* target) {
  const auto row = [&](int64_t rank) { return reinterpret_cast<const Number*>(slots + rank * slot_bytes); };
  const int64_t n = num_bytes / sizeof(Number);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Floats total = load(row(0) + i);
    for (int64_t rank = 1; rank < size; ++rank) total += load(row(rank) + i);
    store(target + i, total);
  }
  for (; i < n; ++i) {
    float total = widen(row(0)[i]);
    for (int64_t rank = 1; rank < size; ++rank) total += widen(row(rank)[i]);
    put(target + i, total);
  }
}

// Return whether all came; else `lost` says who did not.
inline bool exchange(const ExchangeArgs& args) {
  const Meeting& meeting = args.meeting;
  auto* flags = static_cast<TurnFlag*>(meeting.flags);
  const bool is_writing = args.writer < 0 || args.writer == args.rank;
  const bool is_reading = args.reader < 0 || args.reader == args.rank;
  const int64_t first = std::max<int64_t>(args.writer, 0), last = args.writer < 0 ? args.size - 1 : args.writer;
  const auto has_come = [&](int64_t rank, int64_t turn) {
    if (wait_for(meeting, flags[rank], turn)) return true;
    *meeting.lost = rank;
    return false;
  };
  for (int64_t done = 0; done < args.num_bytes; done += meeting.slot_bytes) {
    const int64_t n = std::min(meeting.slot_bytes, args.num_bytes - done), turn = ++*meeting.turn;
    char* slots = meeting.slots + (turn & 1) * args.size * meeting.slot_bytes;
    for (int64_t rank = 0; rank < args.size; ++rank)
      if (!has_come(rank, turn - 1)) return false;
    if (is_writing) std::memcpy(slots + args.rank * meeting.slot_bytes, args.source + done, n);
    set_turn(flags[args.rank], turn);
    if (!is_reading) continue;
    for (int64_t rank = first; rank <= last; ++rank)
      if (!has_come(rank, turn)) return false;
    if (args.is_sum && args.is_bfloat16)
      sum_slots(slots, meeting.slot_bytes, args.size, n, reinterpret_cast<Bfloat16*>(args.target + done));
    else if (args.is_sum)
      sum_slots(slots, meeting.slot_bytes, args.size, n, reinterpret_cast<float*>(args.target + done));
    else
      for (int64_t rank = first; rank <= last; ++rank)
        std::memcpy(args.target + (rank - first) * args.num_bytes + done, slots + rank * meeting.slot_bytes, n);
  }
  return true;
}

inline bool send(const SendArgs& args) {
  const Meeting& meeting = args.meeting;
  auto* flags = static_cast<TurnFlag*>(meeting.flags);
  for (int64_t done = 0; done < args.num_bytes; done += meeting.slot_bytes) {
    const int64_t n = std::min(meeting.slot_bytes, args.num_bytes - done), turn = ++*meeting.turn;
    if (!wait_for(meeting, flags[1], turn - 2)) return *meeting.lost = args.peer, false;
    std::memcpy(meeting.slots + (turn & 1) * meeting.slot_bytes, args.source + done, n);
    set_turn(flags[0], turn);
  }
  return true;
}

inline bool receive(const ReceiveArgs& args) {
  const Meeting& meeting = args.meeting;
  auto* flags = static_cast<TurnFlag*>(meeting.flags);
  for (int64_t done = 0; done < args.num_bytes; done += meeting.slot_bytes) {
    const int64_t n = std::min(meeting.slot_bytes, args.num_bytes - done), turn = ++*meeting.turn;
    if (!wait_for(meeting, flags[0], turn)) return *meeting.lost = args.peer, false;
    std::memcpy(args.target + done, meeting.slots + (turn & 1) * meeting.slot_bytes, n);
    set_turn(flags[1], turn);
  }
  return true;
}

inline bool await_turn(const AwaitTurnArgs& args) {
  return wait_for(args.aborted, args.deadline_ns, *static_cast<TurnFlag*>(args.flag), args.turn, args.longest_sleep_ns);
}

inline void set_turn(const SetTurnArgs& args) { set_turn(*static_cast<TurnFlag*>(args.flag), args.turn); }

}  // namespace baton
