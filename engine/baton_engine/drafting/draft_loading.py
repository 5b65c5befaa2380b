"""Loads what drafts for a model: a smaller model of its vocabulary, or a head on its hidden states."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.worker.speculative_config import SpeculativeMethod, refusal
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.checkpoint.weight_files import find_weight_files
from baton_engine.checkpoint.weight_tables import read_tables
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.device import resolve_device
from baton_engine.drafting.draft_guard import Drafter
from baton_engine.drafting.draft_model import DraftModel
from baton_engine.drafting.eagle_config import EagleConfig, find_eagle, read_eagle_config, require_fitting
from baton_engine.drafting.eagle_drafter import EagleDrafter
from baton_engine.drafting.eagle_head import EagleHead, has_embedding, head_names
from baton_engine.drafting.target_vocabulary import share_vocabulary
from baton_engine.dtype import resolve_dtype
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import LoadedModel, load_model
from baton_engine.models.decoder import Decoder
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.hidden_taps import HiddenTaps
from baton_engine.models.registry import read_model_config
from baton_engine.sampling.sampler import Sampler
from baton_engine.sizing import KVCachePlan, MemoryBeside
from baton_engine.steps.runner import ModelRunner

_log = logging.getLogger(__name__)
_TOKENIZER: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """A model or a head that is to be loaded beside the model that it drafts for."""

    folder: Path
    settings: EngineSettings
    """Settings of the model that drafts; with a head, of the target."""
    head: EagleConfig | None = None
    """None: a whole model drafts."""

    def memory(self) -> MemoryBeside:
        """Return what it takes at most, beside the target's weights and KV cache."""
        settings, device = self.settings, resolve_device(self.settings.device)
        config = self.head.layer if self.head is not None else read_model_config(self.folder)
        dtype = resolve_dtype(settings.dtype, config.dtype, device)
        paths = () if settings.has_dummy_weights else find_weight_files(self.folder)
        entries = read_tables(paths)
        num_values = sum(math.prod(entry.shape) for entry in entries.values())
        if self.head is not None and settings.parallel.num_ranks > 1:
            has_own = has_embedding(head_names(entries))
            num_values += self.head.num_shared_values(has_embedding=has_own)
        if self.head is not None:
            num_places = max(1, len(self.head.tapped or ()))
            num_values += num_places * _num_tapped_tokens(settings) * self.head.target_hidden_size
        spec = config.kv_spec(settings.block_size, str(dtype).removeprefix("torch."))
        return MemoryBeside(
            weight_bytes=num_values * dtype.itemsize, block_bytes=len(spec.groups) * spec.block_bytes
        )

    def tap(self, target: LoadedModel) -> None:
        """Have a model copy the hidden states that a head needs, before its steps are captured.

        Raises:
            InvalidConfigError: the model cannot.
        """
        if self.head is None:
            return
        if not isinstance(target.model, Decoder):
            allowed = f"ngram, suffix or draft_model for {target.config.architecture}"
            raise refusal("method", str(self.head.method), allowed)
        _tap(target, self.head.tapped)

    def settings_of_ranks(self, settings: EngineSettings) -> EngineSettings:
        """Return the target's settings, which say what a head taps, for `tap_beside`."""
        return settings if self.head is None else replace(settings, tapped_layers=self.head.tapped or ())

    def load(self, target: LoadedModel) -> Drafter:
        """Load what drafts, with a KV pool for as many tokens as the target's.

        Raises:
            InvalidModelError: it cannot be loaded.
            InvalidConfigError: a setting cannot hold.
        """
        if self.head is not None:
            return _load_head(self.folder, self.head, self.settings, target)
        return _load_model(self.settings, target)


def tap_beside(target: LoadedModel) -> None:
    """Have a rank compute and hand on what its leader's head taps.

    Final hidden states are those of all tokens, so no rank's last layer may leave some out. Those of layers
    come to the leader from the ranks of earlier stages that hand hidden states on to it.
    """
    tapped, place = target.settings.tapped_layers, target.ranks.place
    if tapped is not None and (place.tensor_rank == 0 if tapped else place.is_last_stage):
        _tap(target, tapped or None)


def _tap(target: LoadedModel, layers: tuple[int, ...] | None) -> None:
    model, settings = target.model, target.settings
    assert isinstance(model, Decoder), "others are refused"
    kernels, size = target.kernels.layers, model.config.hidden_size
    num_tokens = _num_tapped_tokens(settings)
    model.taps = HiddenTaps(layers, num_tokens, size, kernels, model.dtype, model.device)


def _num_tapped_tokens(settings: EngineSettings) -> int:
    """Return the tokens of the largest step, whose hidden states are kept for a head."""
    return max(settings.kv_cache.max_num_batched_tokens, settings.max_decode_rows)


def plan_drafts(settings: EngineSettings) -> DraftPlan | None:
    """Return what drafts for the model of the settings; None where no model does.

    Raises:
        InvalidModelError: what drafts cannot be found or read.
        InvalidConfigError: it does not fit the target.
    """
    config = settings.speculative
    if config is None or not config.method.needs_model:
        return None
    assert config.model is not None, "the configuration names a model"
    target, folder = resolve_model(settings.model), resolve_model(config.model)
    target_config = read_model_config(target, overrides=settings.config_overrides)
    if (method := find_eagle(folder, config.method)) is not None:
        return _plan_head(settings, folder, method, target_config)
    _require_same_vocabulary(settings, target, folder, target_config.vocab_size)
    return DraftPlan(
        folder=folder,
        settings=replace(
            settings,
            model=str(folder),
            speculative=None,
            quantization=None,
            quantization_config=None,
            int4_w4a8=False,
            parallel=ParallelSizes(),
            logits_processors=(),
            config_overrides={},
            disable_sliding_window=False,
            runner="generate",
            adapters=None,
        ),
    )


def _plan_head(settings: EngineSettings, folder: Path, method: SpeculativeMethod, target: Any) -> DraftPlan:
    if not isinstance(target, DecoderConfig):
        raise refusal("method", str(method), f"ngram, suffix or draft_model for {target.architecture}")
    head = read_eagle_config(folder, method, len(target.layers))
    require_fitting(head, target, folder)
    return DraftPlan(folder=folder, settings=settings, head=head)


def _require_same_vocabulary(settings: EngineSettings, target: Path, folder: Path, vocab_size: int) -> None:
    own_size = read_model_config(folder).vocab_size
    if own_size != vocab_size:
        allowed = f"a model with the {vocab_size} tokens of {settings.model}; it has {own_size}"
        raise refusal("model", str(folder), allowed)
    vocabularies = [_vocabulary(one) for one in (target, folder)]
    if None not in vocabularies and vocabularies[0] != vocabularies[1]:
        raise refusal("model", str(folder), f"a model with the vocabulary of {settings.model}")


def _load_model(settings: EngineSettings, target: LoadedModel) -> DraftModel:
    folder = Path(settings.model)
    longest = min(target.kv_cache.max_model_len, read_model_config(folder).max_position_embeddings)
    least = load_model(settings, KVCachePlan(num_blocks=1, max_model_len=longest))
    num_groups = len(least.kv_spec.groups)
    num_blocks = num_groups * _num_blocks(settings, target, longest)
    model = replace(least, kv_cache=KVCachePlan(num_blocks=num_blocks, max_model_len=longest))
    _log_size(folder, model.weight_bytes, num_blocks * model.kv_spec.block_bytes)
    return DraftModel(model.start().runner, num_blocks, longest)


def _load_head(
    folder: Path, config: EagleConfig, settings: EngineSettings, target: LoadedModel
) -> EagleDrafter:
    model, kernels = target.model, target.kernels
    assert isinstance(model, Decoder), "it was tapped"
    assert model.taps is not None, "it was tapped"
    weights = WeightReader(folder, model.dtype, model.device, names=head_names)
    is_eagle = config.method is SpeculativeMethod.EAGLE
    shared = share_vocabulary(target, needs_embedding=not has_embedding(weights), needs_logits=is_eagle)
    head = EagleHead(config, weights, kernels.layers, shared, settings.max_decode_rows)
    spec = config.layer.kv_spec(settings.block_size, str(model.dtype).removeprefix("torch."))
    spec = replace(spec, k_axes=kernels.attention.k_axes, v_axes=kernels.attention.v_axes)
    longest = min(target.kv_cache.max_model_len, config.layer.max_position_embeddings)
    num_blocks = _num_blocks(settings, target, longest)
    shape, dtype = (num_blocks, *spec.block_shape), getattr(torch, spec.dtype)
    pool = torch.zeros(shape, dtype=dtype, device=model.device)
    runner = ModelRunner(head, kernels.attention, pool, spec, Sampler(kernels.sampling))
    if not settings.enforce_eager and kernels.attention.is_capturable(pool):
        runner.capture_decodes(settings.max_decode_rows, longest)
    _log_size(folder, weights.loaded_bytes, pool.nbytes)
    return EagleDrafter(runner, head, model.taps, num_blocks, longest)


def _num_blocks(settings: EngineSettings, target: LoadedModel, longest: int) -> int:
    """Return the blocks of a KV group for as many tokens as the target's pool has, or as there can be."""
    num_tokens = min(target.kv_cache.num_blocks * settings.block_size, settings.max_num_seqs * longest)
    return -(-num_tokens // settings.block_size) + 1


def _log_size(folder: Path, weight_bytes: int, pool_bytes: int) -> None:
    _log.info(
        "drafts come from %s: weights %.1f MiB, KV cache %.1f MiB",
        *(folder.name, weight_bytes / 2**20, pool_bytes / 2**20),
    )


def _vocabulary(folder: Path) -> Any:
    """Return the tokens of a folder's tokenizer; None where it has none of the usual form."""
    try:
        return json.loads((folder / _TOKENIZER).read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
