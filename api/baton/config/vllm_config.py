"""The values that `EngineArgs` come to, under the names of vLLM's configuration classes: to read, frozen.

`EngineArgs.create_engine_config` makes them, and engines have them. It loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from baton_core.errors import InvalidConfigError
from baton_core.worker.speculative_config import SpeculativeConfig
from baton_engine.models.transformers_config import load_transformers_config

T = TypeVar("T", bound="ConfigPart")


@dataclass(frozen=True, kw_only=True)
class ConfigPart:
    """One part of a configuration; most fields are those of the `EngineArgs` that it was made of."""

    engine_args: Any = field(repr=False, compare=False)
    """The `EngineArgs`."""

    @classmethod
    def of(cls: type[T], engine_args: Any, **others: Any) -> T:
        """Take the fields that the arguments have, and others."""
        names = [one.name for one in fields(cls) if hasattr(engine_args, one.name)]
        values = {name: getattr(engine_args, name) for name in names}
        return cls(**{**values, "engine_args": engine_args, **others})


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ConfigPart):
    """The model, its tokenizer and what is computed of it."""

    model: str
    tokenizer: str
    tokenizer_mode: str
    skip_tokenizer_init: bool
    trust_remote_code: bool
    dtype: Any
    """The `torch.dtype` that is computed in."""
    seed: int
    revision: str | None
    tokenizer_revision: str | None
    served_model_name: Sequence[str]
    max_model_len: int
    """Longest sequence in tokens; before an engine runs, what is asked for or else the model's."""
    max_position_embeddings: int
    quantization: str | None
    enforce_eager: bool
    disable_sliding_window: bool
    max_logprobs: int
    logprobs_mode: str
    logits_processors: Sequence[Any]
    generation_config: str
    override_generation_config: Mapping[str, Any] | None
    architecture: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    folder: str = field(repr=False)
    """The model's folder on this machine."""
    hf_overrides: Mapping[str, Any] = field(repr=False)
    diff_sampling_param: Mapping[str, Any] = field(repr=False)
    """Sampling defaults of the model that are not Baton's own."""
    runner: str = "generate"
    runner_type: str = "generate"
    convert: str = "none"
    convert_type: str = "none"
    is_encoder_decoder: bool = False
    is_multimodal_model: bool = False
    multimodal_config: None = None
    pooler_config: Mapping[str, Any] | None = None
    pooling_tasks: tuple[str, ...] = ()
    """Tasks of a model that pools."""

    @property
    def architectures(self) -> list[str]:
        return [self.architecture]

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return self.pooling_tasks or ("generate",)

    @cached_property
    def hf_config(self) -> Any:
        """The model's configuration as Transformers reads it.

        Raises:
            InvalidConfigError: Transformers is not installed, or does not know the model.
        """
        try:
            return load_transformers_config(Path(self.folder), self.hf_overrides)
        except (ImportError, OSError, ValueError) as error:
            allowed = "a model that Transformers knows, with Transformers installed"
            raise InvalidConfigError(f"hf_config of {self.folder} ({error}); allowed: {allowed}") from error

    @property
    def hf_text_config(self) -> Any:
        return self.hf_config.get_text_config()

    def get_vocab_size(self) -> int:
        return self.vocab_size

    def get_hidden_size(self) -> int:
        return int(self.hf_text_config.hidden_size)

    def get_num_attention_heads(self, parallel_config: object = None) -> int:
        return int(self.hf_text_config.num_attention_heads)

    def get_num_kv_heads(self, parallel_config: object = None) -> int:
        heads = getattr(self.hf_text_config, "num_key_value_heads", None)
        return int(heads or self.get_num_attention_heads())

    def get_head_size(self) -> int:
        size = getattr(self.hf_text_config, "head_dim", None)
        return int(size or self.get_hidden_size() // self.get_num_attention_heads())

    def get_num_layers(self, parallel_config: object = None) -> int:
        return int(self.hf_text_config.num_hidden_layers)

    def get_diff_sampling_param(self) -> dict[str, Any]:
        """Sampling defaults of the model that are not Baton's own, by `SamplingParams`' names."""
        return dict(self.diff_sampling_param)


@dataclass(frozen=True, kw_only=True)
class CacheConfig(ConfigPart):
    """The KV cache of each worker."""

    block_size: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    enable_prefix_caching: bool
    num_gpu_blocks: int | None = None
    """Blocks of all workers together; None before an engine runs."""
    num_cpu_blocks: int = 0
    cache_dtype: str = "auto"
    swap_space: float = 0.0
    cpu_offload_gb: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(ConfigPart):
    """The processes: workers, and the ranks of each."""

    prefill_workers: int
    decode_workers: int
    disable_custom_all_reduce: bool
    tensor_parallel_size: int
    pipeline_parallel_size: int
    enable_expert_parallel: bool
    expert_placement_strategy: str
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    rank: int = 0
    local_rank: int = 0
    distributed_executor_backend: str = "uni"
    placement_group: Any = field(default=None, compare=False)
    """Placement group of Ray's, from `initialize_ray_cluster`."""
    ray_runtime_env: Any = field(default=None, repr=False)
    """Runtime environment of a Ray cluster to connect to."""

    @property
    def world_size(self) -> int:
        """Processes that compute one model together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def use_ray(self) -> bool:
        return self.distributed_executor_backend == "ray"

    def use_placement_group(self, group: Any, name: str | None) -> None:
        """Have engines of this configuration use a placement group; without a name it is the current one."""
        object.__setattr__(self, "placement_group", group)
        object.__setattr__(self, "distributed_executor_backend", "ray")
        self.engine_args.distributed_executor_backend = "ray"
        self.engine_args.ray_placement_group = name

    @property
    def data_parallel_size(self) -> int:
        """Workers, each with the whole model."""
        return max(1, self.prefill_workers + self.decode_workers)

    @property
    def world_size_across_dp(self) -> int:
        return self.world_size * self.data_parallel_size


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(ConfigPart):
    """The steps of each worker."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    scheduling_policy: str
    async_scheduling: bool | None
    max_num_partial_prefills: int
    max_long_partial_prefills: int
    long_prefill_token_threshold: int
    stream_interval: int
    runner_type: str = "generate"
    enable_chunked_prefill: bool = True

    @property
    def policy(self) -> str:
        return self.scheduling_policy

    @property
    def chunked_prefill_enabled(self) -> bool:
        return self.enable_chunked_prefill


@dataclass(frozen=True, kw_only=True)
class DeviceConfig(ConfigPart):
    """The device of each worker."""

    device: Any
    """A `torch.device`."""

    @property
    def device_type(self) -> str:
        return str(self.device.type)


@dataclass(frozen=True, kw_only=True)
class LoadConfig(ConfigPart):
    """The reading of weights."""

    load_format: str
    download_dir: str | None
    safetensors_load_strategy: str | None
    model_loader_extra_config: Any
    ignore_patterns: Any
    pt_load_map_location: Any
    use_tqdm_on_load: bool


@dataclass(frozen=True, kw_only=True)
class ObservabilityConfig(ConfigPart):
    """Traces and figures."""

    otlp_traces_endpoint: str
    otlp_traces_protocol: str | None
    disable_log_stats: bool
    kv_cache_metrics: bool
    kv_cache_metrics_sample: float
    enable_mfu_metrics: bool


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """Structured outputs; `EngineArgs.structured_outputs_config` takes one too."""

    backend: str = "auto"
    reasoning_parser: str = ""
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    enable_in_reasoning: bool = False


@dataclass(frozen=True, kw_only=True)
class VllmConfig:
    """All parts of an engine's configuration; parts that Baton has not are None."""

    engine_args: Any = field(repr=False, compare=False)
    """The `EngineArgs` that they were made of."""
    model_config: ModelConfig
    cache_config: CacheConfig
    parallel_config: ParallelConfig
    scheduler_config: SchedulerConfig
    device_config: DeviceConfig
    load_config: LoadConfig
    observability_config: ObservabilityConfig
    structured_outputs_config: StructuredOutputsConfig
    lora_config: None = None
    speculative_config: SpeculativeConfig | None = None
    """How tokens are drafted; None: none are."""
    quant_config: None = None
    kv_transfer_config: None = None
    prompt_adapter_config: None = None

    @property
    def decoding_config(self) -> StructuredOutputsConfig:
        """The older name of `structured_outputs_config`."""
        return self.structured_outputs_config

    @property
    def compilation_config(self) -> Any:
        return self.engine_args.compilation_config

    @property
    def kv_events_config(self) -> Mapping[str, Any] | None:
        config: Mapping[str, Any] | None = self.engine_args.kv_events_config
        return config
