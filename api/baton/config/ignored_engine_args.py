"""Engine arguments of vLLM's that change no answer here: any value is taken, and named in the log."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ignored:
    """An argument without an effect: vLLM's default, and the reason why it changes nothing."""

    default: Any
    reason: str


def _group(reason: str, names: str = "", **others: Any) -> dict[str, Ignored]:
    """Fields by default: `names` are None."""
    return {
        name: Ignored(default, reason) for name, default in (dict.fromkeys(names.split()) | others).items()
    }


IGNORED: Final[Mapping[str, Ignored]] = {
    **_group(
        "kernels are chosen from model and device, and decode steps are captured where they can be",
        "attention_backend attention_config kernel_config ir_op_priority compilation_config "
        "cudagraph_capture_sizes cuda_graph_sizes max_cudagraph_capture_size enable_flashinfer_autotune "
        "optimization_level disable_cascade_attn enable_cumem_allocator sparse_indexer_topk_backend",
        enable_shm_tensor_arena=False,
        sleep_mode_offload_cudagraph=False,
        sleep_preserve_parameter_names=None,
        moe_backend="auto",
        linear_backend="auto",
        max_seq_len_to_capture=8192,
        performance_mode="balanced",
    ),
    **_group(
        "ranks wait for each other within fixed times, and their experts stay where they are",
        "all2all_backend data_parallel_rpc_port dp_sync_interval disable_nccl_for_dp_synchronization "
        "distributed_timeout_seconds cpu_distributed_timeout_seconds max_parallel_loading_workers "
        "eplb_config",
        disable_custom_all_reduce=False,
        dcp_kv_cache_interleave_size=1,
        cp_kv_cache_interleave_size=1,
        dbo_decode_token_threshold=32,
        dbo_prefill_token_threshold=512,
        aggregate_engine_logging=False,
    ),
    **_group(
        "Python's logging says what is logged; commands have --log-level and --log-format",
        "logging_config log_level log_config_file",
    ),
    **_group("an engine can sleep without it", enable_sleep_mode=False),
    **_group("preempted requests are computed again, so there is no swap space", swap_space=4),
    **_group(
        "each rank has one matrix of an adapter whole, and its part of the other", fully_sharded_loras=False
    ),
    **_group("every layer of a prompt is computed", kv_sharing_fast_prefill=False),
    **_group(
        "blocks are found by a chained hash of 128 bits and kept until they are evicted",
        "prefix_caching_hash_algo prefix_cache_retention_interval prefix_match_unit "
        "disable_hybrid_kv_cache_manager",
        watermark=0.0,
        use_v2_block_manager=True,
    ),
    **_group(
        "prompts are always computed in chunks, beside decodes, under one token budget",
        "enable_chunked_prefill scheduler_reserve_full_isl preemption_mode",
        prefill_schedule_interval=1,
        num_lookahead_slots=0,
        num_scheduler_steps=1,
        multi_step_stream_outputs=True,
        disable_async_output_proc=False,
    ),
    **_group(
        "the tokenizer's file is read in as many threads as it needs",
        "tokenizer_pool_type tokenizer_pool_extra_config",
        tokenizer_pool_size=0,
        renderer_num_workers=1,
    ),
    **_group(
        "weights are read from their files one tensor at a time",
        "safetensors_load_strategy safetensors_prefetch_num_threads safetensors_prefetch_block_size "
        "model_loader_extra_config ignore_patterns",
        pt_load_map_location="cpu",
        use_tqdm_on_load=True,
    ),
    **_group(
        "no backend such as NCCL is set up: new weights come by update_weights, from a folder or, of LLM, as "
        "tensors",
        "weight_transfer_config",
    ),
    **_group(
        "code from model folders is never run, and a model that needs its own is refused",
        "code_revision",
        trust_remote_code=False,
    ),
    **_group(
        "models of text alone are served, and other input is refused",
        "limit_mm_per_prompt media_io_kwargs mm_processor_kwargs mm_hasher_algorithm "
        "mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path "
        "mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin mm_tensor_ipc "
        "mm_ipc_gpu_memory_gb mm_device_do_normalize video_pruning_rate video_pruning_method "
        "allowed_local_media_path allowed_media_domains",
        language_model_only=False,
        interleave_mm_strings=False,
        disable_mm_preprocessor_cache=False,
        disable_chunked_mm_input=False,
        skip_mm_profiling=False,
        enable_mm_processor_stats=False,
        mm_processor_cache_gb=4,
        mm_processor_cache_type="lru",
        mm_processor_device="auto",
        mm_shm_cache_max_object_size_mb=128,
        mm_encoder_tp_mode="weights",
    ),
}


def is_unset(value: object) -> bool:
    """True for None and for what is empty."""
    return value is None or (isinstance(value, str | tuple | list | set | dict) and not value)


def log_ignored(values: Mapping[str, object]) -> None:
    """Name the values that have no effect, in one line of the log; `values` are by field."""
    given = {
        name: ignored.reason
        for name, ignored in IGNORED.items()
        if not is_unset(values.get(name)) and values[name] != ignored.default
    }
    if "swap_space" in given:
        warnings.warn("swap_space is ignored: there is no swap space", DeprecationWarning, stacklevel=2)
    if given:
        told = "; ".join(f"{name} ({reason})" for name, reason in given.items())
        _log.warning("taken without effect: %s", told)
