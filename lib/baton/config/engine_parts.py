"""From `EngineArgs` to the parts that engines, clusters and workers are put together from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.api.metrics import GenerationMetrics
from baton.api.request_builder import RequestBuilder
from baton.config.engine_args import EngineArgs
from baton.config.engine_folders import with_local_folders
from baton.kv_events.kv_events_config import read_kv_events_config
from baton.worker.worker_process import WorkerSettings
from baton_core.errors import InvalidConfigError
from baton_core.sessions.worker_info import Role
from baton_core.worker.scheduler_config import SchedulerConfig, parse_policy
from baton_engine.loading import EngineSettings
from baton_engine.logprobs import LogprobsMode
from baton_engine.model_folder import resolve_model
from baton_engine.quantization import Quantization
from baton_engine.sizing import KVCacheSettings
from baton_engine.weight_files import find_weight_files, is_safetensors
from baton_kv.transport import Transport
from baton_router.answers.registry import find_reasoning_parser
from baton_router.generation_defaults import with_generation_config
from baton_router.model_folder import ModelFolder, read_model_folder
from baton_router.request_limits import ReasoningMarkers, RequestLimits
from baton_router.tokenization import Tokenizer
from baton_service.tracing import read_tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What every engine has, however it computes."""

    args: EngineArgs
    """With folders of this machine."""
    model: ModelFolder
    requests: RequestBuilder
    metrics: GenerationMetrics


def load_parts(args: EngineArgs) -> EngineParts:
    """Find the model and read what callers need of it.

    Raises:
        InvalidModelError: the model cannot be found, or a file is broken.
        InvalidConfigError: a setting cannot hold.
    """
    args = with_local_folders(args)
    model = read_model(args)
    metrics = GenerationMetrics(args.served_model_name[0])
    return EngineParts(args=args, model=model, requests=request_builder(args, model), metrics=metrics)


def worker_settings(args: EngineArgs, *, num_workers: int = 1, **others: Any) -> WorkerSettings:
    """The settings of one of `num_workers` workers on this machine; `others` are further fields.

    Raises:
        InvalidConfigError: a value cannot hold.
    """
    kv_cache = KVCacheSettings(
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        memory_share=args.gpu_memory_utilization,
        num_workers=num_workers,
        max_model_len=args.max_model_len,
        max_num_batched_tokens=args.max_num_batched_tokens,
    )
    engine = EngineSettings(
        model=args.model,
        dtype=args.dtype,
        quantization=Quantization(args.quantization) if args.quantization else None,
        device=args.device,
        block_size=args.block_size,
        kv_cache=kv_cache,
        max_num_seqs=args.max_num_seqs,
        enforce_eager=args.enforce_eager,
        batch_invariant=args.batch_invariant,
        cpu_kernels=args.cpu_kernels,
        async_scheduling=args.async_scheduling,
        logits_processors=tuple(args.logits_processors),
        logprobs_mode=LogprobsMode(args.logprobs_mode),
    )
    scheduler = SchedulerConfig(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        policy=parse_policy(args.scheduling_policy),
        max_num_partial_prefills=args.max_num_partial_prefills,
        max_long_partial_prefills=args.max_long_partial_prefills,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
    )
    _check_load_format(args)
    settings: dict[str, Any] = {"role": Role.MIXED, "routers": ("in-process",), **others}
    return WorkerSettings(
        engine=engine,
        kv_transport=Transport(args.kv_transport),
        scheduler=scheduler,
        tokenizer=args.tokenizer,
        structured_outputs_backend=args.structured_outputs_backend,
        enable_prefix_caching=args.enable_prefix_caching,
        model_name=args.served_model_name[0] if args.served_model_name else args.model,
        allow_functions=args.allow_functions,
        kv_events=read_kv_events_config(args.kv_events_config),
        tracing=read_tracing(args.otlp_traces_endpoint, args.otlp_traces_protocol),
        profiler_folder=(args.profiler_config or {}).get("torch_profiler_dir", ""),
        **settings,
    )


def read_model(args: EngineArgs) -> ModelFolder:
    """Read what callers and routers know of a model; its folders are local.

    Raises:
        InvalidModelError: a file is missing or broken.
        InvalidConfigError: the generation_config cannot hold.
    """
    tokenizer = None if args.tokenizer is None else Path(args.tokenizer)
    model = read_model_folder(Path(args.model), tokenizer)
    return with_generation_config(model, args.generation_config, args.override_generation_config)


def request_builder(args: EngineArgs, model: ModelFolder) -> RequestBuilder:
    """What reads the requests of an engine, as a router with these arguments would.

    Raises:
        InvalidModelError: the tokenizer is broken.
        InvalidConfigError: no reasoning parser has the name.
    """
    reasoning = None
    if args.reasoning_parser:
        parser = find_reasoning_parser(args.reasoning_parser)
        reasoning = ReasoningMarkers(start=parser.start_text, end=parser.end_text)
    limits = RequestLimits(
        max_logprobs=args.max_logprobs,
        logits_processors=tuple(args.logits_processors),
        reasoning=reasoning,
        trust_request_chat_template=True,
        is_in_process=not args.is_disaggregated,
    )
    return RequestBuilder(model, Tokenizer(model), limits, seed=args.seed)


def _check_load_format(args: EngineArgs) -> None:
    if args.load_format == "auto":
        return
    wants_safetensors = args.load_format == "safetensors"
    for path in find_weight_files(resolve_model(args.model)):
        if is_safetensors(path) is not wants_safetensors:
            raise InvalidConfigError(f"load_format is {args.load_format!r}; allowed: auto, for {path}")
