"""From a model's name to a runner with its weights and KV pool in memory.

Peak memory is the weights, the largest layer as the file has it and a small staging buffer; with a
quantization while loading the largest layer in float32 and half of that again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.model.model_description import ModelDescription
from baton_core.ranks.rank_layout import RankPlace
from baton_core.requests.pooling import PoolingModel
from baton_core.worker.speculative_config import refusal as speculative_refusal
from baton_engine.adapters.adapter_bank import AdapterBank
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.checkpoint.folder_description import describe_folder
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.checkpoint.model_fields import read_model_fields
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.checkpoint.quantization.kv_scales import read_kv_scales
from baton_engine.checkpoint.weight_files import find_gguf
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.device import free_device_bytes, free_unused, resolve_device, returning_freed_memory
from baton_engine.dtype import resolve_cache_dtype, resolve_dtype
from baton_engine.engine_settings import EngineSettings
from baton_engine.kernel_choice import choose_kernels
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.divisible import require_divisible, require_plain_sums
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.models.model import Model
from baton_engine.models.registry import build_model, read_model_config, require_head
from baton_engine.pooling.pooler import Pooler, digest_with_pooling, load_pooler
from baton_engine.pooling.settings import PoolingPlan, find_pooling
from baton_engine.quantization_choice import ChosenQuantization, choose_quantization
from baton_engine.ranks.agreement import numerics_of_ranks, plan_over_ranks, weights_in_memory
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_engine.sampling.logits_processors import LogitsProcessors
from baton_engine.sampling.logits_rules import LogitsRules
from baton_engine.sampling.processor_batch import BatchProcessors
from baton_engine.sampling.sampler import Sampler
from baton_engine.sampling.sampling_state import Grammars, SamplingStates
from baton_engine.sizing import (
    NOTHING_BESIDE,
    KVCachePlan,
    MemoryBeside,
    MemoryState,
    explaining_full_memory,
)
from baton_engine.steps.runner import ModelRunner
from baton_engine.warm_up import WarmUp, WarmUpLimits
from baton_kernels.cpu.memory import huge_zeros
from baton_kernels.interface.kernels import Kernels, LayerKernels

logger = logging.getLogger(__name__)

AllocatePool = Callable[[KVSpec, int], Tensor]
"""Returns a zeroed, contiguous pool of a number of blocks on the runner's device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadModel:
    """The parts of a model's folder that decide its tokens."""

    weights: str
    """Hash of all bytes of the weights, by `digest_with_pooling`; empty at ranks but a group's leader."""
    description: ModelDescription
    """The rest of the folder, without its tokenizer."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the tensors that the model has, by name; empty where Transformers reads them."""
    pooling: PoolingPlan | None = None
    """How it pools; None: it generates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine:
    """A runner that is ready for its first step, and what its worker has to know of it."""

    runner: ModelRunner
    config: ModelConfig
    kv_spec: KVSpec
    kv_cache: KVCachePlan
    read: ReadModel
    numerics: str = ""
    """`Kernels.numerics`."""
    quantization: str = ""
    """Quantization of linear layers while they were loaded; empty if there was none."""
    dtype: str = ""
    """Dtype that the model is computed in, by torch's name."""
    read_bytes: int = 0
    """As `LoadedModel.read_bytes`."""
    has_batch_processors: bool = False
    """True if classes process the logits of every request."""
    pooling: PoolingModel | None = None
    """Description of what the model pools; None: it generates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Weights and kernels in memory, and the plan of a KV pool that is not there yet."""

    model: Model
    kernels: Kernels
    config: ModelConfig
    kv_spec: KVSpec
    kv_cache: KVCachePlan
    settings: EngineSettings
    ranks: Ranks
    processors: LogitsProcessors
    batch_processors: BatchProcessors
    read: ReadModel
    quantization: ChosenQuantization
    open_weights: Callable[[], WeightReader]
    """Opens the same files once more, to be read in the same way."""
    weight_bytes: int
    """Size of the weights in memory."""
    read_bytes: int
    """Size of those that steps read as a whole."""
    pooler: Pooler | None = None
    """None where tokens are generated."""
    adapters: AdapterBank | None = None
    """None where the engine takes no LoRA adapters."""

    def start(
        self, allocate_pool: AllocatePool | None = None, grammars: Grammars | None = None
    ) -> LoadedEngine:
        """Allocate the KV pool and warm a runner up. Without `grammars` it refuses structured outputs.

        Raises:
            InvalidConfigError: there is too little memory for steps, or to capture decode steps.
        """
        spec, plan, settings = self.kv_spec, self.kv_cache, self.settings
        kv_pool = (allocate_pool or self._allocate_pool)(spec, plan.num_blocks)
        attention = self.kernels.attention
        states = SamplingStates(self.processors, grammars)
        sampler = Sampler(
            self.kernels.sampling, LogitsRules(states, self.batch_processors), settings.logprobs_mode
        )
        runner = ModelRunner(
            self.model, attention, kv_pool, spec, sampler, self.ranks, self.pooler, self.adapters
        )
        if self.ranks.place.is_leader:
            self._warm_up(runner, has_grammars=grammars is not None and grammars.warms_up)
        elif self.pooler is None:
            self._capture_decodes(runner)
        states.clear()
        return LoadedEngine(
            runner=runner,
            config=self.config,
            kv_spec=self.kv_spec,
            kv_cache=plan,
            read=self.read,
            numerics=numerics_of_ranks(self.kernels.numerics, self.ranks),
            quantization=self.quantization.name,
            dtype=str(self.model.dtype).removeprefix("torch."),
            read_bytes=self.read_bytes,
            has_batch_processors=self.processors.has_classes,
            pooling=self.pooler.model if self.pooler else None,
        )

    def _allocate_pool(self, spec: KVSpec, num_blocks: int) -> Tensor:
        """Return a pool that this process alone reads."""
        shape, dtype = (num_blocks, *spec.block_shape), getattr(torch, spec.dtype)
        if self.model.device.type == "cpu":
            return huge_zeros(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=self.model.device)

    def _warm_up(self, runner: ModelRunner, *, has_grammars: bool) -> None:
        """Run steps of every kind; the other ranks of a group follow."""
        logger.info("warming up")
        plan, settings = self.kv_cache, self.settings
        limits = WarmUpLimits(
            max_model_len=plan.max_model_len,
            max_num_batched_tokens=settings.kv_cache.max_num_batched_tokens,
            max_decode_rows=settings.max_decode_rows,
            has_grammars=has_grammars,
            pooling=self.pooler.model if self.pooler else None,
        )
        warm_up = WarmUp(runner=runner, limits=limits)
        with explaining_full_memory(settings.kv_cache):
            warm_up.run_prompts()
            if self.pooler is None:
                self._capture_decodes(runner)
                warm_up.run_decodes()

    def _capture_decodes(self, runner: ModelRunner) -> None:
        """Capture decode steps where that can be; captured steps need memory besides the pool's."""
        can_attend = self.kernels.attention.is_capturable(runner.kv_pool)
        if self.settings.enforce_eager or not (can_attend and self.ranks.is_capturable):
            return
        if not self.model.is_capturable:
            logger.info(
                "decode steps run eagerly: on this device the model in %s may need the host within a step",
                self.model.dtype,
            )
            return
        runner.capture_decodes(self.settings.max_decode_rows, self.kv_cache.max_model_len)


def load_model(
    settings: EngineSettings,
    plan: KVCachePlan | None = None,
    weight_folder: Path | None = None,
    ranks: Ranks = ALONE,
    beside: MemoryBeside = NOTHING_BESIDE,
) -> LoadedModel:
    """Load the weights, or a rank's part of them, and size the KV pool, unless its `plan` is given.

    Weights come from the model's own folder, or from `weight_folder`. A group's leader sizes the pool, and
    leaves room for what is to be loaded `beside`.

    Raises:
        InvalidModelError: the model cannot be found or loaded.
        InvalidConfigError: a setting cannot hold for this model and this machine.
    """
    device, ranks = resolve_device(settings.device), _placed(ranks, settings)
    processors, folder = LogitsProcessors.load(settings.logits_processors), resolve_model(settings.model)
    config, pooling = _read_configs(settings, folder)
    _require_drafts_possible(settings, processors, is_pooling=pooling is not None)
    require_divisible(config, ranks.place.sizes)
    dtype = resolve_dtype(settings.dtype, config.dtype, device)
    is_dummy = settings.has_dummy_weights and weight_folder is None
    gguf = None if is_dummy else find_gguf(weight_folder or folder)
    quantization = _choose_quantization(settings, folder, config, gguf, device)
    free, began_s = free_device_bytes(device), time.monotonic()
    read = DummyWeights if is_dummy else WeightReader
    open_weights = partial(read, weight_folder or folder, dtype, device, **quantization.of_weights)
    weights = open_weights()
    kernels = choose_kernels(
        config, device, dtype, cpu_kernels=settings.cpu_kernels, batch_invariant=settings.batch_invariant
    )
    weights.adapters = bank = make_bank(settings, config, weights, kernels.layers)
    with returning_freed_memory():
        model = _build(config, weights, kernels.layers, ranks)
        pooler = None if pooling is None else load_pooler(pooling, weights)
    logger.info("weights are read, in %.1f s", time.monotonic() - began_s)
    free_unused(device)  # what lay between reading and packing the weights
    taken = weights_in_memory(weights.loaded_bytes, device, ranks)
    memory = MemoryState(device_type=device.type, free_bytes=free, weight_bytes=taken, beside=beside)
    spec = _kv_spec(settings, config, kernels, weights)
    plan = plan or _plan(spec, config, settings, memory, ranks, pooling)
    return LoadedModel(
        model=model,
        kernels=kernels,
        config=config,
        kv_spec=spec,
        kv_cache=plan,
        settings=settings,
        ranks=ranks,
        processors=processors,
        batch_processors=processors.batch_processors(_vllm_config(settings, model, config, plan), device),
        read=_read_model(weights, ranks, describe_folder(folder, config, settings.config_overrides), pooling),
        quantization=quantization,
        open_weights=open_weights,
        weight_bytes=weights.loaded_bytes,
        read_bytes=weights.loaded_bytes - weights.table_bytes,
        pooler=pooler,
        adapters=bank,
    )


def _build(config: ModelConfig, weights: WeightReader, kernels: LayerKernels, ranks: Ranks) -> Model:
    """Build the model, or a rank's part of it, whose adapters may be of other stages' layers too."""
    model, bank = build_model(config, weights, kernels, ranks), weights.adapters
    if isinstance(bank, AdapterBank) and ranks.place.sizes.pipeline > 1:
        bank.add_stages(config.kv_spec(1, "float32").num_layers, weights.matrices)
    return model


def _read_model(
    weights: WeightReader, ranks: Ranks, description: ModelDescription, pooling: PoolingPlan | None
) -> ReadModel:
    """Return what was read; the leader of a group alone tells the digest of the weights."""
    digest = digest_with_pooling(weights, pooling) if ranks.place.is_leader else ""
    return ReadModel(weights=digest, description=description, shapes=weights.shapes, pooling=pooling)


def make_bank(
    settings: EngineSettings, config: ModelConfig, weights: WeightReader, kernels: LayerKernels
) -> AdapterBank | None:
    """Return where the model's layers for adapters are told of; None where the engine takes none.

    Raises:
        InvalidConfigError: no such model takes adapters.
    """
    if settings.adapters is None:
        return None
    is_decoder = isinstance(config, DecoderConfig | LearnedPositionsConfig)
    if not (is_decoder and getattr(config, "is_causal", True)):
        text = f"enable_lora is True; allowed with {config.architecture}: False"
        raise InvalidConfigError(f"{text} (decoders with native code take adapters)")
    return AdapterBank(settings.adapters, weights.dtype, weights.device, kernels)


def _read_configs(settings: EngineSettings, folder: Path) -> tuple[ModelConfig, PoolingPlan | None]:
    """Read the model's configuration and how it pools; None where it generates."""
    longest, unwindowed = settings.kv_cache.max_model_len, settings.disable_sliding_window
    config = read_model_config(folder, longest, settings.config_overrides, disable_sliding_window=unwindowed)
    fields = read_model_fields(folder, settings.config_overrides)
    pooling = find_pooling(folder, fields, config, settings.runner, settings.pooling)
    if pooling is not None:
        return pooling.config, pooling
    require_head(config)
    return config, None


def _require_drafts_possible(
    settings: EngineSettings, processors: LogitsProcessors, *, is_pooling: bool
) -> None:
    """Refuse drafts where nothing is generated, and classes that know one row of each request alone."""
    if settings.speculative is None:
        return
    method = str(settings.speculative.method)
    if is_pooling:
        raise speculative_refusal("method", method, "none for a model that pools")
    if processors.has_classes:
        text = "none beside logits_processors that are classes; functions that requests name are allowed"
        raise speculative_refusal("method", method, text)


def _placed(ranks: Ranks, settings: EngineSettings) -> Ranks:
    """Return the ranks, of which one that is alone has the sizes of the settings too."""
    return Ranks(place=RankPlace(sizes=settings.parallel)) if settings.parallel.num_ranks == 1 else ranks


def _plan(
    spec: KVSpec,
    config: ModelConfig,
    settings: EngineSettings,
    memory: MemoryState,
    ranks: Ranks,
    pooling: PoolingPlan | None,
) -> KVCachePlan:
    """Size the KV pool; an encoder's has no cache."""
    sizes, longest = settings.kv_cache, config.max_position_embeddings
    if pooling is not None:
        sizes = replace(sizes, min_model_len=1)
    if pooling is not None and not pooling.model.is_causal:
        sizes = sizes.without_cache(longest, spec.block_size, settings.max_num_seqs)
    return plan_over_ranks(spec, longest, sizes, memory, ranks)


def _kv_spec(
    settings: EngineSettings, config: ModelConfig, kernels: Kernels, weights: WeightReader
) -> KVSpec:
    """Return the model's KV cache, with the scales of the checkpoint where it holds 8-bit floats."""
    dtype = resolve_cache_dtype(settings.kv_cache_dtype, weights.dtype, weights.device)
    spec = config.kv_spec(settings.block_size, str(dtype).removeprefix("torch."))
    scales: tuple[tuple[float, float], ...] = ()
    if dtype.itemsize == 1 and not settings.has_dummy_weights:
        scales = read_kv_scales(weights, sum(len(group.layers) for group in spec.groups), config)
    attention = kernels.attention
    return replace(spec, k_axes=attention.k_axes, v_axes=attention.v_axes, scales=scales)


def _choose_quantization(
    settings: EngineSettings, folder: Path, config: ModelConfig, gguf: Path | None, device: torch.device
) -> ChosenQuantization:
    """Choose it, unless sums that depend on no number of ranks are asked for, which it does not have."""
    fields = read_model_fields(folder, settings.config_overrides)
    asked = settings.quantization, settings.quantization_config
    chosen = choose_quantization(*asked, fields, folder, config, int4_w4a8=settings.int4_w4a8, gguf=gguf)
    if settings.parallel.is_invariant:
        require_plain_sums(device.type, is_quantized=chosen != ChosenQuantization())
    return chosen


def _vllm_config(
    settings: EngineSettings, model: Model, config: ModelConfig, plan: KVCachePlan
) -> SimpleNamespace:
    """Return the part of vLLM's `VllmConfig` that constructors of logits processor classes find here."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=settings.model,
            dtype=model.dtype,
            max_model_len=plan.max_model_len,
            get_vocab_size=lambda: config.vocab_size,
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.kv_cache.max_num_batched_tokens,
            max_model_len=plan.max_model_len,
        ),
        cache_config=SimpleNamespace(block_size=settings.block_size),
        device_config=SimpleNamespace(device=model.device, device_type=model.device.type),
    )
