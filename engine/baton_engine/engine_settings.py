"""The settings of the load of one worker's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.worker.speculative_config import SpeculativeConfig
from baton_engine.adapters.adapter_settings import AdapterSettings
from baton_engine.pooling.settings import PoolingSettings
from baton_engine.sampling.token_logprobs import LogprobsMode
from baton_engine.sizing import KVCacheSettings
from baton_kernels.cpu.variants import AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of the load of one worker's model."""

    model: str
    """A local folder or a Hugging Face id."""
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    """One of `CACHE_DTYPES`; auto is that of the model."""
    quantization: str | None = None
    """Quantization of the linear layers: one of `OnlineQuantization`, or the method of the checkpoint."""
    quantization_config: Mapping[str, Any] | None = None
    """Kinds of quantization by layers, as `read_online_plan` takes them."""
    int4_w4a8: bool = False
    """Round inputs of layers that are stored as 4-bit integers to int8, which changes their values."""
    device: str = "cpu"
    """One of `device.ALLOWED`."""
    parallel: ParallelSizes = field(default_factory=ParallelSizes)
    """The parts that the model is divided into, each computed by a rank of its own."""
    block_size: int = 32
    kv_cache: KVCacheSettings = field(default_factory=KVCacheSettings)
    max_num_seqs: int = 128
    """Sequences of the largest decode step that is captured."""
    enforce_eager: bool = False
    """Capture no decode steps."""
    logits_processors: tuple[str, ...] = ()
    """Functions that requests may name, as `package.module:function`, and classes that apply to all."""
    logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
    batch_invariant: bool = False
    """Compute each token alike whatever shares its steps; slower."""
    cpu_kernels: str = AUTO
    """The build of the C++ kernels on a CPU, one of `CPU_KERNELS`."""
    speculative: SpeculativeConfig | None = None
    """How tokens are drafted; None: none are."""
    tapped_layers: tuple[int, ...] | None = None
    """Layers whose inputs a head at the group's leader reads, as it tells the other ranks; empty: the final
    hidden states; None: nothing is read."""
    async_scheduling: bool | None = None
    """Plan a step while the one before it runs; None: on a GPU."""
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Values that come before those of config.json."""
    disable_sliding_window: bool = False
    """Have sequences no longer than the model's sliding window, and no window."""
    share_weights: bool = False
    """Have one copy of the weights for all processes of this machine that have the same, on CPUs."""
    has_dummy_weights: bool = False
    """Random weights; none are read."""
    runner: str = "auto"
    """`generate` or `pooling`; auto is as the model's files say."""
    pooling: PoolingSettings = field(default_factory=PoolingSettings)
    """How hidden states are pooled."""

    adapters: AdapterSettings | None = None
    """The limits of LoRA adapters; None takes none."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(
                    f"{name} is {getattr(self, name)}; allowed: an integer of at least 1"
                )
        if self.parallel.is_invariant and not self.batch_invariant:
            raise InvalidConfigError("parallel_invariant is True; allowed without batch_invariant: False")
        if self.speculative is not None and self.async_scheduling:
            text = "async_scheduling is True; allowed with speculative_config: False"
            raise InvalidConfigError(f"{text} (drafts need the tokens of the step before)")

    @property
    def max_decode_rows(self) -> int:
        """Tokens of the largest decode step: one of each sequence, and its draft."""
        drafted = 0 if self.speculative is None else self.speculative.num_speculative_tokens
        return self.max_num_seqs * (1 + drafted)

    def plans_ahead(self, device: torch.device) -> bool:
        """True if steps on this device are planned while others run."""
        if self.async_scheduling is None:
            return device.type == "cuda" and self.speculative is None
        return self.async_scheduling
