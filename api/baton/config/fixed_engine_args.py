"""Engine arguments of vLLM's that have one value here, and why. Giving another one is an error."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from baton_core.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class Fixed:
    """Values that change nothing, the default first; None and empty values never change anything."""

    allowed: tuple[Any, ...]
    reason: str

    @property
    def default(self) -> Any:
        return self.allowed[0]

    def check(self, value: object, name: str) -> None:
        """Refuse a value that asks for what there is not; `name` is what the error calls the field.

        Raises:
            InvalidConfigError: naming the field, its value, what is allowed and why.
        """
        is_nothing = value is None or (isinstance(value, str | tuple | list | set | dict) and not value)
        # True is 1 and 4 is 4.0 to Python; the first is a mistake, the second is not.
        if is_nothing or any(
            value == one and isinstance(value, bool) is isinstance(one, bool) for one in self.allowed
        ):
            return
        allowed = " or ".join(repr(value) for value in self.allowed)
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise InvalidConfigError(f"{name} is {shown}; allowed: {allowed} ({self.reason})")


def _group(reason: str, *, unset: str = "", off: str = "", **others: Any) -> tuple[str, dict[str, Any]]:
    """Fields by default: `unset` is None, `off` is False."""
    return reason, dict.fromkeys(unset.split()) | dict.fromkeys(off.split(), False) | others


_GROUPS: Final = (
    _group(
        "one device computes a model; prefill_workers and decode_workers add processes",
        unset=(
            "dcp_comm_backend dcp_q_replicate data_parallel_rank data_parallel_start_rank "
            "data_parallel_size_local data_parallel_address data_parallel_rpc_port dp_sync_interval "
            "disable_nccl_for_dp_synchronization enable_batch_sharded_sampling eplb_config "
            "all2all_backend distributed_executor_backend distributed_timeout_seconds "
            "cpu_distributed_timeout_seconds device_ids numa_bind_nodes numa_bind_cpus "
            "max_parallel_loading_workers fault_tolerance_config"
        ),
        off=(
            "data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb "
            "enable_expert_parallel enable_ep_weight_filter enable_elastic_ep enable_eplb enable_dbo "
            "numa_bind disable_custom_all_reduce ray_workers_use_nsight enable_nccl_comm_suspend "
            "enable_fault_tolerance"
        ),
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
        decode_context_parallel_size=1,
        dcp_kv_cache_interleave_size=1,
        cp_kv_cache_interleave_size=1,
        data_parallel_size=1,
        data_parallel_backend="mp",
        num_redundant_experts=0,
        expert_placement_strategy="linear",
        ubatch_size=0,
        dbo_decode_token_threshold=32,
        dbo_prefill_token_threshold=512,
        master_addr="127.0.0.1",
        master_port=29501,
        nnodes=1,
        node_rank=0,
    ),
    _group(
        "weights are quantized by --quantization int8 alone",
        unset="quantization_config quantization_param_path",
        off="allow_deprecated_quantization calculate_kv_scales",
    ),
    _group(
        "the KV cache has the element type of the model",
        unset="kv_cache_dtype_skip_layers",
        kv_cache_dtype="auto",
    ),
    _group(
        "adapters are not supported",
        unset=(
            "max_cpu_loras lora_target_modules default_mm_loras long_lora_scaling_factors "
            "qlora_adapter_name_or_path"
        ),
        off=(
            "enable_lora fully_sharded_loras enable_lora_bias enable_tower_connector_lora "
            "specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras "
            "enable_prompt_adapter"
        ),
        max_loras=1,
        max_lora_rank=16,
        lora_dtype="auto",
        lora_extra_vocab_size=256,
        max_prompt_adapters=1,
        max_prompt_adapter_token=0,
    ),
    _group(
        "speculative decoding is not supported",
        unset=(
            "speculative_config spec_method spec_model spec_tokens speculative_model "
            "num_speculative_tokens diffusion_config"
        ),
        num_lookahead_slots=0,
        per_request_spec_decode_metrics="none",
    ),
    _group(
        "models of text alone are supported",
        unset=(
            "limit_mm_per_prompt media_io_kwargs mm_processor_kwargs mm_hasher_algorithm "
            "mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path "
            "mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin mm_tensor_ipc "
            "mm_ipc_gpu_memory_gb mm_device_do_normalize video_pruning_rate video_pruning_method "
            "allowed_local_media_path allowed_media_domains io_processor_plugin ec_transfer_config "
            "ec_manager_config"
        ),
        off=(
            "language_model_only enable_mm_embeds enable_prompt_embeds interleave_mm_strings "
            "mm_encoder_only disable_mm_preprocessor_cache disable_chunked_mm_input skip_mm_profiling "
            "enable_mm_processor_stats"
        ),
        mm_processor_cache_gb=4,
        mm_processor_cache_type="lru",
        mm_processor_device="auto",
        mm_shm_cache_max_object_size_mb=128,
        mm_encoder_tp_mode="weights",
    ),
    _group(
        "models that generate are supported, not those that pool",
        unset="task pooler_config override_pooler_config",
        runner="auto",
        convert="auto",
    ),
    _group(
        "models with a state instead of a KV cache are not supported",
        unset=(
            "mamba_block_size mamba_backend mamba_config mamba_ssu_algorithm mamba_cache_philox_rounds "
            "replayssm_buffer_len gdn_prefill_backend kda_prefill_backend"
        ),
        off="enable_mamba_cache_stochastic_rounding use_replayssm",
        mamba_cache_dtype="auto",
        mamba_ssm_cache_dtype="auto",
        mamba_cache_mode="none",
    ),
    _group("code from model folders is never run", unset="code_revision", off="trust_remote_code"),
    _group(
        "the model's config.json is taken as it is",
        unset="hf_overrides hf_config_path rope_scaling rope_theta model_class_overrides",
        off="disable_sliding_window",
        config_format="auto",
    ),
    _group(
        "which code and which kernels run is chosen from model and device",
        unset=(
            "attention_backend attention_config kernel_config ir_op_priority compilation_config "
            "cudagraph_capture_sizes cuda_graph_sizes max_cudagraph_capture_size "
            "enable_flashinfer_autotune enable_bf16x3_router_gemm optimization_level disable_cascade_attn "
            "worker_extension_cls additional_config override_attention_dtype enable_cumem_allocator"
        ),
        off="use_fp64_gumbel",
        model_impl="auto",
        moe_backend="auto",
        linear_backend="auto",
        max_seq_len_to_capture=8192,
        performance_mode="balanced",
        worker_cls="auto",
    ),
    _group(
        "the size of the KV cache is said by kv_cache_memory_bytes or gpu_memory_utilization",
        unset="num_gpu_blocks_override",
        swap_space=4,
        watermark=0.0,
    ),
    _group(
        "weights and KV cache stay on their device",
        unset="cpu_offload_params offload_params kv_offloading_size",
        cpu_offload_gb=0,
        offload_backend="auto",
        offload_group_size=0,
        offload_num_in_group=1,
        offload_prefetch_step=1,
        kv_offloading_backend="native",
    ),
    _group(
        "blocks are found by a chained hash of 128 bits and kept until they are evicted",
        unset="prefix_caching_hash_algo prefix_cache_retention_interval prefix_match_unit",
        off="kv_sharing_fast_prefill",
    ),
    _group(
        "prompts are always computed in chunks, beside decodes, under one token budget",
        unset=(
            "enable_chunked_prefill max_num_scheduled_tokens scheduler_reserve_full_isl scheduler_cls "
            "preemption_mode disable_hybrid_kv_cache_manager"
        ),
        prefill_schedule_interval=1,
        scheduler_delay_factor=0.0,
        use_v2_block_manager=True,
    ),
    _group(
        "async_scheduling says whether a step is planned before the one before it is done",
        off="disable_async_output_proc",
        num_scheduler_steps=1,
        multi_step_stream_outputs=True,
        stream_interval=1,
    ),
    _group(
        "requests wait in the caller, and a router refuses what it cannot hold",
        unset="max_num_queued_reqs max_num_queued_tokens",
    ),
    _group(
        "the model's own tokenizer file is read, in as many threads as it needs",
        unset="tokenizer_pool_type tokenizer_pool_extra_config",
        off="skip_tokenizer_init tokens_only",
        tokenizer_mode="auto",
        tokenizer_pool_size=0,
        renderer_num_workers=1,
    ),
    _group(
        "new weights come by update_weights from a folder, or as tensors of LLM, without a backend to set up",
        unset="weight_transfer_config",
    ),
    _group(
        "weights are read from safetensors or torch files, one tensor at a time, without a bar",
        unset=(
            "model_weights safetensors_load_strategy safetensors_prefetch_num_threads "
            "safetensors_prefetch_block_size model_loader_extra_config ignore_patterns hf_token"
        ),
        off="enable_sleep_mode",
        pt_load_map_location="cpu",
        use_tqdm_on_load=True,
    ),
    _group(
        "structured_outputs_config and reasoning_parser say it",
        unset="enable_reasoning reasoning_parser_plugin reasoning_config",
        off=(
            "guided_decoding_disable_fallback guided_decoding_disable_any_whitespace "
            "guided_decoding_disable_additional_properties"
        ),
        guided_decoding_backend="auto",
    ),
    _group("logits_processors lists what requests may name", unset="logits_processor_pattern"),
    _group("prefill_workers and decode_workers set the transfer of KV blocks up", unset="kv_transfer_config"),
    _group(
        "it is not measured",
        unset="show_hidden_metrics_for_version collect_detailed_traces",
        off=(
            "aggregate_engine_logging kv_cache_metrics cudagraph_metrics enable_layerwise_nvtx_tracing "
            "enable_mfu_metrics enable_logging_iteration_details jit_monitor_verbose "
            "enable_return_routed_experts return_sampling_mask enable_trace_replay"
        ),
        kv_cache_metrics_sample=0.01,
        jit_monitor_mode="warn",
    ),
    _group("no environment variable is read", off="fail_on_environ_validation"),
)
_ALSO: Final[Mapping[str, tuple[Any, ...]]] = {
    "distributed_executor_backend": ("uni",),
    "runner": ("generate",),
    "convert": ("none",),
    "task": ("auto", "generate"),
    "config_format": ("hf",),
    "tokenizer_mode": ("hf",),
    "enable_chunked_prefill": (True,),
    "use_tqdm_on_load": (False,),
    "enable_sleep_mode": (True,),
    "disable_cascade_attn": (True, False),
    "disable_hybrid_kv_cache_manager": (False,),
    "scheduler_reserve_full_isl": (False,),
    "guided_decoding_backend": ("xgrammar",),
}
"""Further values that ask for nothing else."""
FIXED: Final[Mapping[str, Fixed]] = {
    name: Fixed((default, *_ALSO.get(name, ())), reason)
    for reason, defaults in _GROUPS
    for name, default in defaults.items()
}


_NAME_OF: Final = {f"--{name.replace('_', '-')}": name for name in FIXED}


def check_fixed(name: str, value: object, shown_name: str = "") -> None:
    """Refuse a value that asks for what there is not; `shown_name` is what the error calls the field.

    Raises:
        InvalidConfigError: naming the field, its value, what is allowed and why.
    """
    FIXED[name].check(value, shown_name or name)


def add_fixed_flags(parser: argparse.ArgumentParser) -> None:
    """Add hidden flags, so that whoever reads the fields can refuse them by name; those there are stay."""
    known = {name for action in parser._actions for name in action.option_strings}
    for flag in _NAME_OF.keys() - known:
        parser.add_argument(flag, nargs="?", const=True, type=literal, help=argparse.SUPPRESS)


def literal(text: str) -> Any:
    """A value of the command line: what it is as JSON, else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
