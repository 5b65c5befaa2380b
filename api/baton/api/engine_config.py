"""Makes the configuration that users read, from `EngineArgs` and the model's files."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from baton.api.engine_parts import read_model
from baton.config.engine_args import EngineArgs
from baton.config.engine_folders import with_local_folders
from baton.config.vllm_config import (
    CacheConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
    VllmConfig,
)
from baton_core.requests.pooling import PoolingModel
from baton_core.requests.sampling_params import SamplingParams
from baton_engine.device import resolve_device
from baton_engine.dtype import resolve_dtype
from baton_engine.models.registry import read_model_config
from baton_worker.ranks.executor_choice import default_backend


def engine_config(
    args: EngineArgs,
    *,
    local: EngineArgs | None = None,
    max_model_len: int | None = None,
    num_gpu_blocks: int | None = None,
    pooling: PoolingModel | None = None,
) -> VllmConfig:
    """Read the model's files; an engine that runs gives its sizes, what it pools, and its arguments with
    `local` folders.

    Raises:
        InvalidModelError: the model cannot be found, or a file is broken.
        InvalidConfigError: a setting cannot hold for this model and this machine.
    """
    local = local or with_local_folders(args)
    overrides = local.hf_overrides or {}
    config = read_model_config(
        Path(local.model),
        args.max_model_len,
        overrides,
        disable_sliding_window=args.disable_sliding_window,
    )
    device = resolve_device(args.device)
    longest = max_model_len or args.max_model_len or config.max_position_embeddings
    model_config = ModelConfig.of(
        args,
        tokenizer=args.tokenizer or args.model,
        served_model_name=args.model_names,
        dtype=resolve_dtype(args.dtype, config.dtype, device),
        max_model_len=longest,
        max_position_embeddings=config.max_position_embeddings,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        folder=local.model,
        hf_overrides=overrides,
        diff_sampling_param=_own_defaults(read_model(local).sampling_defaults),
        runner="generate" if pooling is None else "pooling",
        runner_type="generate" if pooling is None else "pooling",
        convert=args.convert if pooling is not None else "none",
        convert_type=args.convert if pooling is not None else "none",
        pooling_tasks=() if pooling is None else tuple(task.value for task in pooling.tasks),
        pooler_config=args.pooler_config,
    )
    return VllmConfig(
        engine_args=args,
        model_config=model_config,
        cache_config=CacheConfig.of(args, num_gpu_blocks=num_gpu_blocks),
        parallel_config=ParallelConfig.of(args, distributed_executor_backend=_executor_backend(args)),
        scheduler_config=SchedulerConfig.of(args, max_model_len=longest, enable_chunked_prefill=True),
        device_config=DeviceConfig.of(args, device=device),
        load_config=LoadConfig.of(args),
        observability_config=ObservabilityConfig.of(args),
        structured_outputs_config=StructuredOutputsConfig(
            backend=args.structured_outputs_backend, reasoning_parser=args.reasoning_parser
        ),
        speculative_config=args.create_speculative_config(),
    )


def _executor_backend(args: EngineArgs) -> str:
    given = args.distributed_executor_backend
    return str(given) if given else "uni" if args.world_size == 1 else default_backend()


def _own_defaults(params: SamplingParams) -> dict[str, Any]:
    baton = SamplingParams()
    values = {one.name: getattr(params, one.name) for one in fields(params)}
    return {name: value for name, value in values.items() if value != getattr(baton, name)}
