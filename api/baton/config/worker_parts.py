"""Makes the settings of a worker from `EngineArgs`; a worker needs none of the router's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baton.config.engine_args import EngineArgs
from baton.config.environment import cpu_kv_cache_bytes
from baton.config.launch_checks import scheduler_config
from baton.config.lora_args import adapter_settings
from baton.config.parallel_args import RAY_ENVIRONMENT, require_even_nodes
from baton.config.processor_names import applied_names
from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import ExpertPlacement, ParallelSizes
from baton_core.sessions.worker_info import Role
from baton_core.worker.speculative_config import SpeculativeConfig, read_speculative_config
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.checkpoint.weight_files import find_weight_files, is_gguf, is_safetensors
from baton_engine.device import resolve_device
from baton_engine.engine_settings import EngineSettings
from baton_engine.pooling.settings import PoolingSettings
from baton_engine.sampling.token_logprobs import LogprobsMode
from baton_engine.sizing import KVCacheSettings
from baton_kv.transport import Transport
from baton_service.tracing import read_tracing
from baton_worker.kv_events.kv_events_config import read_kv_events_config
from baton_worker.metrics_settings import MetricsSettings
from baton_worker.pool_placement import choose_device
from baton_worker.ranks.executor_choice import default_backend
from baton_worker.ranks.executor_settings import ExecutorSettings, RaySettings, secret_of_ranks
from baton_worker.worker_process import WorkerSettings


def worker_settings(
    args: EngineArgs, *, num_workers: int = 1, num_gpu_workers: int | None = None, **others: Any
) -> WorkerSettings:
    """The settings of one of `num_workers` workers on this machine; `others` are further fields.

    Those of them that share its GPU, if it has one, are `num_gpu_workers`; None: all.

    Raises:
        InvalidConfigError: a value cannot hold.
    """
    engine = EngineSettings(
        model=args.model,
        dtype=args.dtype,
        kv_cache_dtype=args.kv_cache_dtype,
        quantization=args.quantization,
        quantization_config=args.quantization_config,
        int4_w4a8=args.int4_w4a8,
        share_weights=args.share_weights,
        parallel=_parallel_sizes(args, others.get("role", Role.MIXED)),
        device=args.device,
        block_size=args.block_size,
        kv_cache=_kv_cache_settings(args, num_workers, num_gpu_workers),
        max_num_seqs=args.max_num_seqs,
        enforce_eager=args.enforce_eager,
        batch_invariant=args.batch_invariant,
        cpu_kernels=args.cpu_kernels,
        async_scheduling=args.async_scheduling,
        speculative=_drafts_of(args, others.get("role", Role.MIXED)),
        logits_processors=applied_names(args.logits_processors),
        logprobs_mode=LogprobsMode(args.logprobs_mode),
        config_overrides=args.hf_overrides or {},
        disable_sliding_window=args.disable_sliding_window,
        has_dummy_weights=args.load_format == "dummy",
        adapters=adapter_settings(args),
        runner=args.runner,
        pooling=PoolingSettings(convert=args.convert, pooler=dict(args.pooler_config or {})),
    )
    _check_load_format(args)
    settings: dict[str, Any] = {"role": Role.MIXED, "routers": ("in-process",), **others}
    return WorkerSettings(
        engine=engine,
        executor=executor_settings(args, others.get("api_keys", ())),
        kv_transport=Transport(args.kv_transport),
        scheduler=scheduler_config(args),
        tokenizer=args.tokenizer,
        structured_outputs_backend=args.structured_outputs_backend,
        enable_prefix_caching=args.enable_prefix_caching,
        metrics=MetricsSettings(
            residency_share=args.kv_cache_metrics_sample if args.kv_cache_metrics else 0.0,
            estimates_work=args.enable_mfu_metrics,
        ),
        model_name=args.model_names[0],
        data_parallel_rank=args.data_parallel_rank or 0,
        allow_functions=args.allow_functions,
        kv_events=read_kv_events_config(args.kv_events_config),
        tracing=read_tracing(args.otlp_traces_endpoint, args.otlp_traces_protocol),
        profiler_folder=(args.profiler_config or {}).get("torch_profiler_dir", ""),
        **settings,
    )


def _drafts_of(args: EngineArgs, role: Role) -> SpeculativeConfig | None:
    """Return how a worker drafts: one that is to prefill has no use for weights that draft."""
    config = read_speculative_config(args.speculative_config)
    return None if config is not None and config.method.needs_model and role is Role.PREFILL else config


def executor_settings(args: EngineArgs, api_keys: Sequence[str] = ()) -> ExecutorSettings:
    """Return how the ranks of a worker are started; those of other machines have the first of these keys.

    Raises:
        InvalidConfigError: this machine is not the leader's.
    """
    if args.node_rank:
        text = f"node_rank is {args.node_rank}; allowed: 0, where requests come in"
        raise InvalidConfigError(f"{text} (the other machines run baton serve with --node-rank)")
    given = args.distributed_executor_backend
    ray = RaySettings(
        address=args.ray_address,
        placement_group=args.ray_placement_group,
        strategy=args.ray_placement_strategy,
        timeout_s=args.ray_placement_timeout,
        environment=(*RAY_ENVIRONMENT, *args.ray_environment),
    )
    return ExecutorSettings(
        backend=default_backend() if given in (None, "uni") else str(given),
        nnodes=args.nnodes,
        master_addr=args.master_addr,
        master_port=args.master_port,
        secret=secret_of_ranks(api_keys),
        ray=ray,
        has_pools_apart=args.rank_pools == "apart",
    )


def _parallel_sizes(args: EngineArgs, role: Role) -> ParallelSizes:
    require_even_nodes(args, role)
    tensor = args.tensor_parallel_size_of(role)
    experts = ExpertPlacement.CUT
    if args.enable_expert_parallel and tensor > 1:
        experts = ExpertPlacement(args.expert_placement_strategy)
    stages = tuple(map(int, filter(None, (args.pipeline_layer_partition or "").split(","))))
    if stages and len(stages) != args.pipeline_parallel_size:
        text = f"pipeline_layer_partition is {args.pipeline_layer_partition}"
        allowed = f"as many numbers as pipeline_parallel_size, {args.pipeline_parallel_size}"
        raise InvalidConfigError(f"{text}; allowed: {allowed}")
    return ParallelSizes(
        tensor=tensor,
        stages=stages,
        pipeline=args.pipeline_parallel_size,
        experts=experts,
        is_invariant=args.parallel_invariant,
    )


def _kv_cache_settings(args: EngineArgs, num_workers: int, num_gpu_workers: int | None) -> KVCacheSettings:
    is_on_gpu = choose_device(args.device, Transport(args.kv_transport)).type != "cpu"
    return KVCacheSettings(
        kv_cache_memory_bytes=args.kv_cache_memory_bytes or _cpu_kv_cache_bytes(args.device),
        num_gpu_blocks_override=args.num_gpu_blocks_override,
        memory_share=args.gpu_memory_utilization,
        num_workers=num_gpu_workers if is_on_gpu and num_gpu_workers is not None else num_workers,
        max_model_len=args.max_model_len,
        max_num_batched_tokens=args.max_num_batched_tokens,
    )


def _cpu_kv_cache_bytes(device: str) -> int | None:
    given = cpu_kv_cache_bytes()
    return given if given is not None and resolve_device(device).type == "cpu" else None


def _check_load_format(args: EngineArgs) -> None:
    if args.load_format in ("auto", "dummy"):
        return
    for path in find_weight_files(resolve_model(args.model)):
        kind = "safetensors" if is_safetensors(path) else "gguf" if is_gguf(path) else "pt"
        if args.load_format != kind:
            raise InvalidConfigError(f"load_format is {args.load_format!r}; allowed: auto, for {path}")
