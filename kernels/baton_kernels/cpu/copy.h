// Copies of rows of bytes from one array to another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

extern "C" struct BatonCopy {
  const char* source;          // rows of row_bytes, one after another
  char* target;                // likewise; overlaps no source
  const int64_t* source_rows;  // [num_rows]
  const int64_t* target_rows;  // [num_rows]
  int64_t num_source_rows;     // that there are
  int64_t num_target_rows;
  int64_t num_rows;
  int64_t row_bytes;
  int32_t is_past_caches;      // whether the target is written to memory at once, and not read before
};

namespace baton {

#if defined(__x86_64__)
constexpr int64_t kCopyStep = 64, kCopyAhead = 1024;

inline bool can_stream(const char* target, int64_t num_bytes) {
  return reinterpret_cast<uintptr_t>(target) % sizeof(__m128i) == 0 && num_bytes % kCopyStep == 0;
}

inline void stream_bytes(const char* source, char* target, int64_t num_bytes) {
  for (int64_t done = 0; done < num_bytes; done += kCopyStep) {
    const auto* from = reinterpret_cast<const __m128i*>(source + done);
    auto* to = reinterpret_cast<__m128i*>(target + done);
    _mm_prefetch(source + done + kCopyAhead, _MM_HINT_T0);
    const __m128i parts[] = {_mm_loadu_si128(from), _mm_loadu_si128(from + 1), _mm_loadu_si128(from + 2),
                             _mm_loadu_si128(from + 3)};
    for (int64_t part = 0; part < 4; ++part) _mm_stream_si128(to + part, parts[part]);
  }
}
#endif

inline bool are_rows(const int64_t* rows, int64_t num_rows, int64_t end) {
  return std::all_of(rows, rows + num_rows, [&](int64_t row) { return 0 <= row && row < end; });
}

// False, and nothing is copied, if a row is not there.
inline bool copy_rows(const BatonCopy& step) {
  if (!are_rows(step.source_rows, step.num_rows, step.num_source_rows)) return false;
  if (!are_rows(step.target_rows, step.num_rows, step.num_target_rows)) return false;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const char* source = step.source + step.source_rows[row] * step.row_bytes;
    char* target = step.target + step.target_rows[row] * step.row_bytes;
#if defined(__x86_64__)
    if (step.is_past_caches && can_stream(target, step.row_bytes)) {
      stream_bytes(source, target, step.row_bytes);
      continue;
    }
#endif
    std::memcpy(target, source, step.row_bytes);
  }
#if defined(__x86_64__)
  if (step.is_past_caches) _mm_sfence();
#endif
  return true;
}

}  // namespace baton
