// The kernels that CpuLibrary calls, by the prototypes of structs.h. One build serves one instruction set; variants.py
// defines its macros.
#include <atomic>
#include <new>
#include <vector>

#include "varlen_attention.h"
#if BATON_BFLOAT16_DOT
#include "attention_bfloat16_dot.h"
#endif
#include "attention_vectors.h"
#if BATON_TILES
#include "amx_linear.h"
#include "attention_amx.h"
#include "varlen_attention_amx.h"
#endif
#include "collectives.h"
#include "copy.h"
#include "int8_linear.h"
#include "lora.h"
#include "sampling.h"
#include "pack.h"
#include "packed_linear.h"
#include "quantized_linear.h"
#include "round_inputs.h"
#include "thread_pool.h"
#include "rotary_embedding.h"
#include "norms_activations.h"
#include "structs.h"

namespace baton {
namespace {

using SplitAttention = void (*)(const Split&, const Split& next, PartialResult, float*);

struct DecodeKernel {
  SplitAttention attention = nullptr;
  int64_t scratch_size = 0;
};

// A type as a value.
template <class Number>
struct Type {
  using Of = Number;
};

// Call `body` with the type of the numbers of the cache.
template <class Body>
auto with_stored(const KvLayer& layer, const Body& body) {
  switch (layer.dtype) {
    case kFloat32: return body(Type<float>());
    case kBfloat16: return body(Type<Bfloat16>());
    case kFloat8E4m3fn: return body(Type<E4m3>());
    default: return body(Type<E5m2>());
  }
}

// Call `body` with the types of new K and V and of the numbers of the cache: the same unless that has 8 bits.
template <class Body>
void with_written(const KvWriteArgs& write, const Body& body) {
  with_stored(write.layer, [&](auto stored) {
    if constexpr (!kIsFloat8<typename decltype(stored)::Of>) body(stored, stored);
    else if (write.is_bfloat16) body(Type<Bfloat16>(), stored);
    else body(Type<float>(), stored);
  });
}

template <class Stored>
DecodeKernel choose_kernel(const DecodeAttentionArgs& args) {
  if constexpr (!std::is_same_v<Stored, float>) {
#if BATON_TILES
    if (args.layer.is_v_transposed) return {attention_amx<Stored>, TileScratch::size_of(args)};
#endif
#if BATON_BFLOAT16_DOT
    if (args.is_q_bfloat16 && !args.layer.is_v_transposed)
      return {attention_bfloat16_dot<Stored>, PairScratch::size_of(args)};
#endif
  }
  if (args.layer.is_v_transposed) return {};
  return {attention_vectors<Stored>, RowScratch::size_of(args)};
}

// The splits of all rows, one after another.
struct Plan {
  std::vector<Row> rows;
  std::vector<int64_t> first_split;   // first split of each row, and the number of splits
  std::vector<int32_t> row_of_split;

  explicit Plan(const DecodeAttentionArgs& args) {
    for (int64_t decode = 0; decode < args.num_decodes; ++decode) {
      for (int64_t head = 0; head < args.layer.num_kv_heads; ++head) {
        const Row row{args, decode, head};
        first_split.push_back(row_of_split.size());
        row_of_split.insert(row_of_split.end(), row.num_splits(), rows.size());
        if (!row.num_splits()) merge(row, nullptr, 0);
        rows.push_back(row);
      }
    }
    first_split.push_back(row_of_split.size());
  }
  int64_t num_splits() const { return row_of_split.size(); }
  Split split(int64_t index) const {
    const int64_t row = row_of_split[index];
    return Split(rows[row], index - first_split[row]);
  }
};

int64_t cache_line(int64_t num_floats) { return round_up(num_floats, 16); }

// Return scratch memory of this thread, which grows and never shrinks.
float* reserve(int64_t num_floats) {
  static thread_local std::vector<float> memory;
  if (memory.size() < size_t(num_floats) + 16) memory.resize(num_floats + 16);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64 / sizeof(float);
}

void decode_attention(const DecodeAttentionArgs& args, const DecodeKernel& kernel) {
  const Plan plan(args);
  const int64_t num_splits = plan.num_splits(), result_size = PartialResult::size_of(args);
  const int64_t scratch_size = cache_line(kernel.scratch_size);
  float* results = reserve(cache_line(num_splits * result_size) + args.num_threads * scratch_size);
  float* scratch = results + cache_line(num_splits * result_size);
  std::vector<std::atomic<int64_t>> left(plan.rows.size());
  for (size_t row = 0; row < left.size(); ++row)
    left[row] = plan.first_split[row + 1] - plan.first_split[row];
  parallel_for(args.num_threads, num_splits, 1, [&](int64_t split, int64_t thread) noexcept {
    const int64_t row = plan.row_of_split[split], first = plan.first_split[row];
    kernel.attention(plan.split(split), plan.split(std::min(split + 1, num_splits - 1)),
                  PartialResult(args, results + split * result_size), scratch + thread * scratch_size);
    if (--left[row] == 0)
      merge(plan.rows[row], results + first * result_size, plan.first_split[row + 1] - first);
  });
}

void varlen_attention(const VarlenAttentionArgs& args) {
  const std::vector<QueryTile> tiles = query_tiles(args);
  const TileKernel kernel = with_stored(
      args.layer, [&](auto stored) { return tile_kernel<typename decltype(stored)::Of>(args); });
  const int64_t size = cache_line(kernel.size);
  float* memory = reserve(args.num_threads * size);
  parallel_for(args.num_threads, tiles.size(), 1, [&](int64_t tile, int64_t thread) noexcept {
    kernel.attention(args, tiles[tile], memory + thread * size);
  });
}

#if BATON_TILES
template <class Keys, class Args>
void prompt_attention(const Args& args, const Keys& keys, const std::vector<QueryTile>& tiles) {
  const PromptTask task = task_of(args);
  const int64_t size = cache_line(PromptTile<Keys>::size_of(task, tokens_per_tile(args) * args.group_size));
  float* memory = reserve(args.num_threads * size);
  parallel_for(args.num_threads, tiles.size(), 1, [&](int64_t tile, int64_t thread) noexcept {
    PromptTile<Keys>(task, keys, tiles[tile], memory + thread * size).run();
  });
}
#endif

// Run a kernel that may lack memory.
template <class Body>
int run(const Body& body) {
  try {
    body();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
  return kOk;
}

}  // namespace
}  // namespace baton

using namespace baton;

extern "C" {

// Return 0 when this process may use the build.
int baton_prepare() {
#if BATON_TILES
  return request_tiles() ? 0 : 1;
#else
  return 0;
#endif
}

// Return the number of entries of the layout of structs.h, and the entries.
const int64_t* baton_struct_layout() { return kStructLayout; }

// Run kernels one after the other; return the first status that is not 0, or 0.
int baton_run_all(const KernelCall* calls, int64_t num_calls) {
  for (int64_t i = 0; i < num_calls; ++i) {
    const auto kernel = reinterpret_cast<int (*)(const void*)>(const_cast<void*>(calls[i].kernel));
    if (const int status = kernel(calls[i].args)) return status;
  }
  return kOk;
}

int baton_decode_attention(const DecodeAttentionArgs* args) {
  const DecodeKernel kernel = with_stored(
      args->layer, [&](auto stored) { return choose_kernel<typename decltype(stored)::Of>(*args); });
  if (!kernel.attention) return kUnsupportedLayout;
  return run([&] { decode_attention(*args, kernel); });
}

int baton_varlen_attention(const VarlenAttentionArgs* args) {
#if BATON_TILES
  if (args->layer.is_v_transposed && args->is_q_bfloat16 && args->layer.dtype != kFloat32)
    return run([&] {
      with_stored(args->layer, [&](auto stored) {
        prompt_attention(*args, CachedKeys<typename decltype(stored)::Of>(*args), query_tiles(*args));
      });
    });
#endif
  if (args->layer.is_v_transposed) return kUnsupportedLayout;
  return run([&] { varlen_attention(*args); });
}

int baton_bidirectional_attention([[maybe_unused]] const BidirectionalAttentionArgs* args) {
#if BATON_TILES
  return run([&] {
    const auto no_context = [](int64_t, int64_t) { return int64_t{0}; };
    prompt_attention(*args, PromptKeys{*args}, query_tiles(*args, args->num_kv_heads, 1, no_context));
  });
#else
  return kUnsupportedLayout;
#endif
}

int baton_kv_write(const KvWriteArgs* args) {
  with_written(*args, [&](auto element, auto stored) {
    write_rows<typename decltype(element)::Of, typename decltype(stored)::Of>(*args);
  });
  return kOk;
}

int baton_rotate(const RotateArgs* args) {
  with_written(args->write, [&](auto element, auto stored) {
    rotate_rows<typename decltype(element)::Of, typename decltype(stored)::Of>(*args);
  });
  return kOk;
}

int baton_rotary_angles(const RotaryAnglesArgs* args) { return rotary_angles(*args), kOk; }

int baton_copy(const CopyArgs* args) { return copy_rows(*args) ? kOk : kRowOutOfRange; }

int baton_pack(const PackArgs* args) { return pack(*args), kOk; }

int baton_norm(const NormArgs* args) {
  return run([&] { normalise_rows(*args, reserve(norm_scratch(*args))); });
}

int baton_elementwise(const ElementwiseArgs* args) {
  apply_to_rows(*args);
  return kOk;
}

int baton_sample(const SampleArgs* args) {
  return run([&] { sample_rows(*args, reserve(args->num_threads * Scores::size_of(*args))); });
}

// Set `layout` to that of packed weights: outputs of a panel, neighbouring inputs that lie side by side, and the number
// that inputs are a multiple of.
void baton_packed_layout(int32_t is_bfloat16, int64_t* layout) {
  layout[0] = kPackedPanelWidth;
  layout[1] = layout[2] = is_bfloat16 ? Packing<PackedBfloat16>::kDepth : 1;
#if BATON_TILES
  if (is_bfloat16) layout[0] = kTileOutputs, layout[2] = kTileInputs;
#endif
}

// As baton_packed_layout, for the codes of quantized weights.
void baton_quantized_layout(int32_t is_bfloat16, int64_t* layout) {
  layout[0] = kPackedPanelWidth;
  layout[1] = layout[2] = is_bfloat16 ? Packing<PackedBfloat16>::kDepth : 1;
}

// As baton_packed_layout, for codes of 8 bits that are multiplied with codes.
void baton_int8_layout(int64_t* layout) {
  layout[0] = kInt8PanelWidth, layout[1] = 4, layout[2] = kInt8Multiple;
}

int baton_packed_linear(const PackedLinearArgs* args) {
#if BATON_TILES
  if (args->is_bfloat16) {
    const Bfloat16Layer layer{*args};
    const TileLinearPlan plan(layer.operands());
    return run([&] { amx_linear(layer, plan, reserve(args->num_threads * plan.scratch_size())); });
  }
#endif
  packed_linear(*args);
  return kOk;
}

int baton_quantize(const QuantizeArgs* args) {
  quantize_rows(*args);
  return kOk;
}

int baton_round_inputs(const RoundInputsArgs* args) {
  args->is_bfloat16 ? round_inputs<Bfloat16>(*args) : round_inputs<float>(*args);
  return kOk;
}

int baton_quantized_linear(const QuantizedLinearArgs* args) {
  return run([&] {
    float* input_sums = reserve(args->zeros ? args->num_rows * num_chunks(*args) : 0);
#if BATON_TILES
    if (args->is_x_codes) return quantized_linear<Quad>(*args, input_sums);
#endif
#if BATON_BFLOAT16_DOT
    if (args->is_bfloat16) return quantized_linear<Pair>(*args, input_sums);
#endif
    quantized_linear<float>(*args, input_sums);
  });
}

int baton_lora(const LoraArgs* args) {
  bool is_in_range = true;
  const int status = run([&] {
    LoraPlan plan(*args);
    is_in_range = plan.is_in_range;
    if (!is_in_range || plan.rows.empty()) return;
    plan.inner = reserve(plan.num_inner);
    args->is_bfloat16 ? add_lora<PackedBfloat16>(plan) : add_lora<float>(plan);
  });
  return is_in_range ? status : kRowOutOfRange;
}

int baton_exchange(const ExchangeArgs* args) { return exchange(*args) ? kOk : kRankLost; }
int baton_send(const SendArgs* args) { return send(*args) ? kOk : kRankLost; }
int baton_receive(const ReceiveArgs* args) { return receive(*args) ? kOk : kRankLost; }
int baton_await_turn(const AwaitTurnArgs* args) { return await_turn(*args) ? kOk : kRankLost; }
int baton_set_turn(const SetTurnArgs* args) { return set_turn(*args), kOk; }

int baton_int8_linear(const Int8LinearArgs* args) {
  return run([&] { int8_linear(*args, reserve(int8_scratch_size(*args))); });
}

}  // extern "C"
