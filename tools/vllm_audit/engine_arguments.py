"""Engine arguments that vLLM documents, each with a value that asks for something else than its default."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tools.vllm_audit.effects import EFFECTS
from tools.vllm_audit.probes import all_of, field, flag
from tools.vllm_audit.subjects import MODEL
from tools.vllm_audit.verdict import Group, Probe

VALUES: Final[Mapping[str, Any]] = {
    "_api_process_count": 2,
    "_api_process_rank": 1,
    "additional_config": {"a": 1},
    "aggregate_engine_logging": True,
    "all2all_backend": "naive",
    "allowed_local_media_path": "folder",
    "allowed_media_domains": ["x.org"],
    "async_scheduling": True,
    "attention_backend": "FLASH_ATTN",
    "attention_config": {"backend": "FLASH_ATTN"},
    "block_size": 16,
    "calculate_kv_scales": True,
    "code_revision": "main",
    "collect_detailed_traces": ["all"],
    "compilation_config": 3,
    "config_format": "mistral",
    "convert": "embed",
    "cp_kv_cache_interleave_size": 2,
    "cpu_offload_gb": 1,
    "cudagraph_capture_sizes": [1, 2],
    "cudagraph_metrics": True,
    "data_parallel_address": "127.0.0.1",
    "data_parallel_backend": "ray",
    "data_parallel_external_lb": True,
    "data_parallel_hybrid_lb": True,
    "data_parallel_rank": 1,
    "data_parallel_rpc_port": 1234,
    "data_parallel_size": 2,
    "data_parallel_size_local": 1,
    "data_parallel_start_rank": 1,
    "dbo_decode_token_threshold": 1,
    "dbo_prefill_token_threshold": 1,
    "dcp_kv_cache_interleave_size": 2,
    "decode_context_parallel_size": 2,
    "default_mm_loras": {"a": "b"},
    "disable_cascade_attn": True,
    "disable_chunked_mm_input": True,
    "disable_custom_all_reduce": True,
    "disable_hybrid_kv_cache_manager": True,
    "disable_log_stats": True,
    "disable_nccl_for_dp_synchronization": True,
    "disable_sliding_window": True,
    "distributed_executor_backend": "ray",
    "download_dir": "folder",
    "dtype": "bfloat16",
    "ec_transfer_config": {"ec_connector": "x"},
    "enable_chunked_prefill": False,
    "enable_dbo": True,
    "enable_eplb": True,
    "enable_expert_parallel": True,
    "enable_layerwise_nvtx_tracing": True,
    "enable_lora": True,
    "enable_mfu_metrics": True,
    "enable_mm_embeds": True,
    "enable_prefix_caching": False,
    "enable_prompt_embeds": True,
    "enable_sleep_mode": True,
    "enforce_eager": True,
    "eplb_config": {"window_size": 1},
    "expert_placement_strategy": "round_robin",
    "fully_sharded_loras": True,
    "generation_config": "vllm",
    "gpu_memory_utilization": 0.5,
    "hf_config_path": MODEL,
    "hf_overrides": {"max_position_embeddings": 1024},
    "hf_token": "abc",
    "ignore_patterns": ["*.bin"],
    "interleave_mm_strings": True,
    "io_processor_plugin": "x",
    "kv_cache_dtype": "fp8",
    "kv_cache_memory_bytes": 1 << 24,
    "kv_cache_metrics": True,
    "kv_cache_metrics_sample": 0.5,
    "kv_events_config": {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://127.0.0.1:5557",
    },
    "kv_offloading_backend": "lmcache",
    "kv_offloading_size": 1.0,
    "kv_sharing_fast_prefill": True,
    "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
    "limit_mm_per_prompt": {"image": 1},
    "load_format": "dummy",
    "logits_processor_pattern": ".*",
    "logits_processors": ["tools.vllm_audit.checkpoints:ForcedToken"],
    "logprobs_mode": "raw_logits",
    "long_prefill_token_threshold": 100,
    "lora_dtype": "float16",
    "mamba_block_size": 8,
    "mamba_cache_dtype": "float32",
    "mamba_ssm_cache_dtype": "float32",
    "master_addr": "10.0.0.1",
    "master_port": 1234,
    "max_cpu_loras": 4,
    "max_cudagraph_capture_size": 8,
    "max_logprobs": 2,
    "max_long_partial_prefills": 2,
    "max_lora_rank": 32,
    "max_loras": 2,
    "max_model_len": 128,
    "max_num_batched_tokens": 512,
    "max_num_partial_prefills": 2,
    "max_num_seqs": 64,
    "max_parallel_loading_workers": 2,
    "media_io_kwargs": {"video": {"num_frames": 4}},
    "mm_encoder_attn_backend": "FLASH_ATTN",
    "mm_encoder_tp_mode": "data",
    "mm_processor_cache_gb": 1,
    "mm_processor_cache_type": "shm",
    "mm_processor_kwargs": {"num_crops": 4},
    "mm_shm_cache_max_object_size_mb": 1,
    "model": MODEL,
    "model_impl": "transformers",
    "model_loader_extra_config": {"a": 1},
    "nnodes": 2,
    "node_rank": 1,
    "num_gpu_blocks_override": 64,
    "optimization_level": 0,
    "otlp_traces_endpoint": "http://127.0.0.1:4317",
    "override_attention_dtype": "float16",
    "override_generation_config": {"top_k": 7},
    "pipeline_parallel_size": 2,
    "pooler_config": {"pooling_type": "MEAN"},
    "prefill_context_parallel_size": 2,
    "prefix_caching_hash_algo": "sha256",
    "profiler_config": {"profiler": "torch", "torch_profiler_dir": "folder"},
    "pt_load_map_location": "cuda",
    "quantization": "fp8",
    "ray_workers_use_nsight": True,
    "reasoning_parser": "qwen3",
    "reasoning_parser_plugin": "x.py",
    "revision": "audited",
    "runner": "pooling",
    "safetensors_load_strategy": "eager",
    "scheduler_cls": "a.b",
    "scheduling_policy": "priority",
    "seed": 7,
    "served_model_name": ["audited"],
    "show_hidden_metrics_for_version": "0.9",
    "skip_mm_profiling": True,
    "skip_tokenizer_init": True,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    "stream_interval": 4,
    "structured_outputs_config": {"backend": "guidance"},
    "swap_space": 1,
    "tensor_parallel_size": 2,
    "tokenizer": MODEL,
    "tokenizer_mode": "slow",
    "tokenizer_revision": "audited",
    "tokens_only": True,
    "trust_remote_code": True,
    "ubatch_size": 2,
    "use_tqdm_on_load": False,
    "video_pruning_rate": 0.5,
    "worker_cls": "a.b",
    "worker_extension_cls": "a.b",
    "enable_log_requests": True,
}
_WITHOUT_FLAG: Final = ("_api_process_count", "_api_process_rank", "tokens_only")
_NOT_OFF: Final = (*_WITHOUT_FLAG, "enable_chunked_prefill")
"""The last is on in any case; its item is that turning it off is refused."""
_SHORT: Final[Mapping[str, str]] = {
    "-ac": "attention_config",
    "-cc": "compilation_config",
    "-dcp": "decode_context_parallel_size",
    "-dp": "data_parallel_size",
    "-dpa": "data_parallel_address",
    "-dpb": "data_parallel_backend",
    "-dpe": "data_parallel_external_lb",
    "-dph": "data_parallel_hybrid_lb",
    "-dpl": "data_parallel_size_local",
    "-dpn": "data_parallel_rank",
    "-dpp": "data_parallel_rpc_port",
    "-dpr": "data_parallel_start_rank",
    "-n": "nnodes",
    "-pcp": "prefill_context_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-q": "quantization",
    "-r": "node_rank",
    "-tp": "tensor_parallel_size",
}
_BY_EFFECT: Final = (
    *("model", "tokenizer", "revision", "tokenizer_revision", "download_dir", "seed", "logits_processors"),
    *("dtype", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size"),
    *("gpu_memory_utilization", "enable_sleep_mode", "enable_chunked_prefill", "disable_cascade_attn"),
    *("use_tqdm_on_load", "disable_log_stats", "enable_log_requests", "nnodes", "node_rank"),
    *("data_parallel_size", "data_parallel_size_local", "data_parallel_start_rank"),
    *("data_parallel_hybrid_lb", "data_parallel_external_lb"),
)
"""Flags that neither router nor workers get as they are, or whose defaults count."""


def _flags_of(name: str, value: Any) -> Iterator[str]:
    """The value as a shell gives it."""
    yield ("--no-" if value is False else "--") + name.replace("_", "-")
    if isinstance(value, list):
        yield from map(str, value)
    elif not isinstance(value, bool):
        yield value if isinstance(value, str) else json.dumps(value)


def _switched_off(name: str) -> Probe:
    return flag(name, [f"--no-{name.replace('_', '-')}"], {name: lambda: None})


def _flag_items() -> Iterator[tuple[str, Probe]]:
    effects = {name: EFFECTS[name] for name in _BY_EFFECT}
    for name, value in VALUES.items():
        if name not in _WITHOUT_FLAG:
            given = (
                ["--enable-chunked-prefill"] if name == "enable_chunked_prefill" else _flags_of(name, value)
            )
            yield f"--{name.replace('_', '-')}", flag(name, list(given), effects)
    for short, name in _SHORT.items():
        yield (
            f"{short}, --{name.replace('_', '-')}",
            flag(name, [short, *list(_flags_of(name, VALUES[name]))[1:]], effects),
        )
    yield (
        "--disable-log-requests",
        flag("disable_log_requests", ["--disable-log-requests"], {"disable_log_requests": lambda: None}),
    )
    switches = [name for name, value in VALUES.items() if isinstance(value, bool) and name not in _NOT_OFF]
    yield "--no-<name> of every switch", all_of(*map(_switched_off, switches))


FIELDS: Final = Group(
    "EngineArgs fields", {name: field(name, value, EFFECTS) for name, value in VALUES.items()}
)
FLAGS: Final = Group("serve flags", dict(_flag_items()))
