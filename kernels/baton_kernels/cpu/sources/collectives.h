// Exchanges of tensors between the processes of one machine, through memory that they share.
//
// Every call takes turns, a slot's worth of bytes in each. In a turn a rank first waits until all have begun the turn
// before: then nobody reads the half that was written two turns ago.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "structs.h"
#include "vectors.h"

namespace baton {

struct alignas(64) TurnFlag {
  std::atomic<int64_t> turn;
};

constexpr int kYieldsBeforeSleep = 4096;

inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000 + time.tv_nsec;
}

// Wait until the flag has reached a turn; false if its rank is lost. Cores may be shared with who is waited for, so it
// yields, and after a while it sleeps.
inline bool wait_for(const Meeting& meeting, const TurnFlag& flag, int64_t turn) {
  if (flag.turn.load(std::memory_order_acquire) >= turn) return true;
  const auto* aborted = reinterpret_cast<const std::atomic<int64_t>*>(meeting.aborted);
  const int64_t end = now_ns() + meeting.deadline_ns;
  for (int64_t round = 0; flag.turn.load(std::memory_order_acquire) < turn; ++round) {
    // A yield may last a whole time slice of another process: the deadline holds for them, too.
    if (aborted->load(std::memory_order_relaxed) || now_ns() > end) return false;
    if (round < kYieldsBeforeSleep) {
      sched_yield();
      continue;
    }
    const timespec pause{0, 50000};
    nanosleep(&pause, nullptr);
  }
  return true;
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
    flags[args.rank].turn.store(turn, std::memory_order_release);
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
    flags[0].turn.store(turn, std::memory_order_release);
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
    flags[1].turn.store(turn, std::memory_order_release);
  }
  return true;
}

}  // namespace baton
