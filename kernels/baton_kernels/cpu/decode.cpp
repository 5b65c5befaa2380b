// The functions that cpu_library.py calls. One build serves one instruction set; see cpu_variants.py for its macros.
#include <atomic>
#include <new>
#include <vector>

#include "attend_blocks.h"
#if BATON_BFLOAT16_DOT
#include "attend_pairs.h"
#endif
#include "attend_rows.h"
#if BATON_TILES
#include "attend_tiles.h"
#endif
#include "copy.h"
#include "int8_product.h"
#include "draw.h"
#include "packed.h"
#include "helpers.h"
#include "product.h"
#include "rotate.h"
#include "row_functions.h"

namespace baton {
namespace {

using Attend = void (*)(const Part&, const Part& next, PartialResult, float*);

struct Kernel {
  Attend attend = nullptr;
  int64_t scratch_size = 0;
};

Kernel choose_kernel(const BatonDecode& step) {
  if (step.layer.is_v_transposed) {
#if BATON_TILES
    if (step.layer.element_bytes == 2) return {attend_tiles, TileScratch::size_of(step)};
#endif
    return {};
  }
  if (step.layer.element_bytes == 4) return {attend_rows<float>, RowScratch::size_of(step)};
#if BATON_BFLOAT16_DOT
  if (step.is_q_bfloat16) return {attend_pairs, PairScratch::size_of(step)};
#endif
  return {attend_rows<Bfloat16>, RowScratch::size_of(step)};
}

// Every row's parts, one after another.
struct Plan {
  std::vector<Row> rows;
  std::vector<int64_t> first_part;   // of each row, and their number
  std::vector<int32_t> row_of_part;

  explicit Plan(const BatonDecode& step) {
    for (int64_t decode = 0; decode < step.num_decodes; ++decode) {
      for (int64_t head = 0; head < step.layer.num_kv_heads; ++head) {
        const Row row{step, decode, head};
        first_part.push_back(row_of_part.size());
        row_of_part.insert(row_of_part.end(), row.num_parts(), rows.size());
        if (!row.num_parts()) merge(row, nullptr, 0);
        rows.push_back(row);
      }
    }
    first_part.push_back(row_of_part.size());
  }
  int64_t num_parts() const { return row_of_part.size(); }
  Part part(int64_t index) const {
    const int64_t row = row_of_part[index];
    return Part(rows[row], index - first_part[row]);
  }
};

int64_t cache_line(int64_t num_floats) { return round_up(num_floats, 16); }

// Grows, never shrinks: one thread calls, so its steps reuse the memory.
float* reserve(int64_t num_floats) {
  static thread_local std::vector<float> memory;
  if (memory.size() < size_t(num_floats) + 16) memory.resize(num_floats + 16);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64 / sizeof(float);
}

void run(const BatonDecode& step, const Kernel& kernel) {
  const Plan plan(step);
  const int64_t num_parts = plan.num_parts(), result_size = PartialResult::size_of(step);
  const int64_t scratch_size = cache_line(kernel.scratch_size);
  float* results = reserve(cache_line(num_parts * result_size) + step.num_threads * scratch_size);
  float* scratch = results + cache_line(num_parts * result_size);
  std::vector<std::atomic<int64_t>> left(plan.rows.size());
  for (size_t row = 0; row < left.size(); ++row)
    left[row] = plan.first_part[row + 1] - plan.first_part[row];
  for_each(step.num_threads, num_parts, 1, [&](int64_t part, int64_t thread) noexcept {
    const int64_t row = plan.row_of_part[part], first = plan.first_part[row];
    kernel.attend(plan.part(part), plan.part(std::min(part + 1, num_parts - 1)),
                  PartialResult(step, results + part * result_size), scratch + thread * scratch_size);
    if (--left[row] == 0)
      merge(plan.rows[row], results + first * result_size, plan.first_part[row + 1] - first);
  });
}

void attend(const BatonAttend& step) {
  const std::vector<QueryTile> tiles = query_tiles(step);
  const TileKernel kernel = tile_kernel(step);
  const int64_t size = cache_line(kernel.size);
  float* memory = reserve(step.num_threads * size);
  for_each(step.num_threads, tiles.size(), 1, [&](int64_t tile, int64_t thread) noexcept {
    kernel.attend(step, tiles[tile], memory + thread * size);
  });
}

void normalise(const BatonNorm& step) { normalise_rows(step, reserve(norm_scratch(step))); }

void draw(const BatonDraw& step) {
  draw_rows(step, reserve(step.num_threads * Scores::size_of(step)));
}

void multiply_in_panels(const BatonProduct& step) { multiply_panels(step, reserve(product_scratch(step))); }

void multiply_int8_rows(const BatonInt8Product& step) {
  multiply_int8(step, reserve(QuantizedRows::size_of(step)));
}

// Return what a function that may lack memory tells its caller: 0, or 2 without memory.
template <class Step>
int done(void (*function)(const Step&), const Step* step) {
  try {
    function(*step);
  } catch (const std::bad_alloc&) {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace baton

extern "C" {

// One of the functions below and its argument. The caller's mirror of this struct is recorded_calls.py.
struct BatonCall {
  int (*function)(const void* step);
  const void* step;
};

// Call one after the other; return the first status that is not 0, or 0.
int baton_run_all(const BatonCall* calls, int64_t num_calls) {
  for (int64_t i = 0; i < num_calls; ++i)
    if (const int status = calls[i].function(calls[i].step)) return status;
  return 0;
}

// Return 0 when this process may use the build.
int baton_prepare() {
#if BATON_TILES
  return baton::request_tiles() ? 0 : 1;
#else
  return 0;
#endif
}

// Return 0, 1 for a layout that this build does not read, 2 without memory.
int baton_decode(const BatonDecode* step) {
  const baton::Kernel kernel = baton::choose_kernel(*step);
  if (!kernel.attend) return 1;
  try {
    baton::run(*step, kernel);
  } catch (const std::bad_alloc&) {
    return 2;
  }
  return 0;
}

int baton_write(const BatonWrite* step) {
  if (step->layer.element_bytes == 2) baton::write_rows<uint16_t>(*step);
  else baton::write_rows<uint32_t>(*step);
  return 0;
}

int baton_rotate(const BatonRotate* step) {
  if (step->write.layer.element_bytes == 2) baton::rotate_rows<baton::Bfloat16>(*step);
  else baton::rotate_rows<float>(*step);
  return 0;
}

int baton_read(const BatonRead* step) {
  if (step->layer.element_bytes == 2) baton::read_rows<uint16_t>(*step);
  else baton::read_rows<uint32_t>(*step);
  return 0;
}

// Return 0, or 1 for a row that is not there.
int baton_copy(const BatonCopy* step) { return baton::copy_rows(*step) ? 0 : 1; }

// Return 0, or 2 without memory.
int baton_normalise(const BatonNorm* step) { return baton::done(baton::normalise, step); }

int baton_apply(const BatonFunction* step) { return baton::done(baton::apply_to_rows, step); }

int baton_draw(const BatonDraw* step) { return baton::done(baton::draw, step); }

// Return how many outputs lie side by side.
int64_t baton_packed_panel() { return baton::kPackedPanel; }

// Return how many neighbours of the inner dimension lie side by side.
int64_t baton_packed_depth(int32_t is_bfloat16) {
  return is_bfloat16 ? baton::Inner<baton::PackedBfloat16>::kDepth : 1;
}

int baton_multiply_packed(const BatonPacked* step) {
  baton::multiply_packed(*step);
  return 0;
}

// Return 0, 1 for a layout that this build does not read, 2 without memory.
int baton_attend(const BatonAttend* step) {
  return step->layer.is_v_transposed ? 1 : baton::done(baton::attend, step);
}

// The batch-invariant mode's.
int baton_multiply(const BatonProduct* step) { return baton::done(baton::multiply_in_panels, step); }

int baton_quantize(const BatonQuantize* step) {
  baton::quantize_rows(*step);
  return 0;
}

// Return 0, or 2 without memory. Needs AVX2 on x86.
int baton_multiply_int8(const BatonInt8Product* step) {
  return baton::done(baton::multiply_int8_rows, step);
}

}  // extern "C"
