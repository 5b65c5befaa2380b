// Copies of rows of bytes from one array to another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "structs.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton {

#if defined(__x86_64__)
constexpr int64_t kCopyStep = 64, kCopyPrefetchBytes = 1024;

inline bool can_stream(const char* target, int64_t num_bytes) {
  return reinterpret_cast<uintptr_t>(target) % sizeof(__m128i) == 0 && num_bytes % kCopyStep == 0;
}

inline void stream_bytes(const char* source, char* target, int64_t num_bytes) {
  for (int64_t done = 0; done < num_bytes; done += kCopyStep) {
    const auto* from = reinterpret_cast<const __m128i*>(source + done);
    auto* to = reinterpret_cast<__m128i*>(target + done);
    _mm_prefetch(source + done + kCopyPrefetchBytes, _MM_HINT_T0);
    const __m128i parts[] = {_mm_loadu_si128(from), _mm_loadu_si128(from + 1), _mm_loadu_si128(from + 2),
                             _mm_loadu_si128(from + 3)};
    for (int64_t part = 0; part < 4; ++part) _mm_stream_si128(to + part, parts[part]);
  }
}
#endif

inline bool are_rows(const int64_t* rows, int64_t num_rows, int64_t end) {
  if (rows == nullptr) return num_rows <= end;
  return std::all_of(rows, rows + num_rows, [&](int64_t row) { return 0 <= row && row < end; });
}

// Return false and copy nothing if a row is out of range.
inline bool copy_rows(const CopyArgs& args) {
  if (!are_rows(args.source_rows, args.num_rows, args.num_source_rows)) return false;
  if (!are_rows(args.target_rows, args.num_rows, args.num_target_rows)) return false;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const char* source = args.source + (args.source_rows ? args.source_rows[row] : row) * args.row_bytes;
    char* target = args.target + (args.target_rows ? args.target_rows[row] : row) * args.row_bytes;
#if defined(__x86_64__)
    if (args.is_past_caches && can_stream(target, args.row_bytes)) {
      stream_bytes(source, target, args.row_bytes);
      continue;
    }
#endif
    std::memcpy(target, source, args.row_bytes);
  }
#if defined(__x86_64__)
  if (args.is_past_caches) _mm_sfence();
#endif
  return true;
}

}  // namespace baton
