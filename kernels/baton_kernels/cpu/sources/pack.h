// Packing of weights: rows become panels, in which what belongs to one column lies side by side.
#pragma once

#include <algorithm>
#include <cstdint>

#include "structs.h"
#include "thread_pool.h"

namespace baton {

constexpr int64_t kPackedLine = 64;  // bytes of a row that are moved at a time

template <class Unit>
void pack_panels(const PackArgs& args) {
  constexpr int64_t kColumns = kPackedLine / sizeof(Unit);
  const int64_t width = args.panel_width, num_columns = args.num_columns;
  parallel_for(args.num_threads, args.num_panels, 1, [&](int64_t panel, int64_t) noexcept {
    const Unit* rows = reinterpret_cast<const Unit*>(args.source) + panel * width * num_columns;
    Unit* packed = reinterpret_cast<Unit*>(args.target) + panel * width * num_columns;
    for (int64_t first = 0; first < num_columns; first += kColumns) {
      const int64_t last = std::min(first + kColumns, num_columns);
      for (int64_t row = 0; row < width; ++row)
        for (int64_t column = first; column < last; ++column)
          packed[column * width + row] = rows[row * num_columns + column];
    }
  });
}

inline void pack(const PackArgs& args) {
  if (args.unit_bytes == sizeof(int8_t)) pack_panels<int8_t>(args);
  if (args.unit_bytes == sizeof(int16_t)) pack_panels<int16_t>(args);
  if (args.unit_bytes == sizeof(int32_t)) pack_panels<int32_t>(args);
}

}  // namespace baton
