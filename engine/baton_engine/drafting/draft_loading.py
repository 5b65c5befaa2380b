"""Loads the model that drafts for another one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.worker.speculative_config import SpeculativeMethod, refusal
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.drafting.draft_model import DraftModel
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import LoadedEngine, load_model
from baton_engine.models.registry import read_model_config
from baton_engine.sizing import KVCachePlan

_log = logging.getLogger(__name__)
_TOKENIZER: Final = "tokenizer.json"


def draft_settings(settings: EngineSettings) -> EngineSettings | None:
    """Return the settings of the model that drafts; None where none does.

    Raises:
        InvalidModelError: the model cannot be found or read.
        InvalidConfigError: it has another vocabulary, or the target is divided among ranks.
    """
    config = settings.speculative
    if config is None or config.method is not SpeculativeMethod.DRAFT_MODEL:
        return None
    if settings.parallel.num_ranks > 1:
        raise refusal("method", str(config.method), "ngram or suffix for a model of several ranks")
    assert config.model is not None, "the configuration names a model"
    target, folder = resolve_model(settings.model), resolve_model(config.model)
    sizes = [
        read_model_config(target, overrides=settings.config_overrides).vocab_size,
        read_model_config(folder).vocab_size,
    ]
    if sizes[0] != sizes[1]:
        allowed = f"a model with the {sizes[0]} tokens of {settings.model}; it has {sizes[1]}"
        raise refusal("model", config.model, allowed)
    vocabularies = [_vocabulary(one) for one in (target, folder)]
    if None not in vocabularies and vocabularies[0] != vocabularies[1]:
        raise refusal("model", config.model, f"a model with the vocabulary of {settings.model}")
    return replace(
        settings,
        model=str(folder),
        speculative=None,
        quantization=None,
        quantization_config=None,
        parallel=ParallelSizes(),
        logits_processors=(),
        config_overrides={},
        runner="generate",
        adapters=None,
    )


def load_draft_model(settings: EngineSettings, target: LoadedEngine) -> DraftModel:
    """Load a model that drafts, with a KV pool for as many tokens as the target's.

    Its memory comes on top of that of the target's weights and KV cache.

    Raises:
        InvalidModelError: it cannot be loaded.
        InvalidConfigError: a setting cannot hold.
    """
    folder = Path(settings.model)
    longest = min(target.kv_cache.max_model_len, read_model_config(folder).max_position_embeddings)
    least = load_model(settings, KVCachePlan(num_blocks=1, max_model_len=longest))
    num_groups = len(least.kv_spec.groups)
    num_tokens = min(target.kv_cache.num_blocks * settings.block_size, settings.max_num_seqs * longest)
    num_blocks = num_groups * (-(-num_tokens // settings.block_size) + 1)
    model = replace(least, kv_cache=KVCachePlan(num_blocks=num_blocks, max_model_len=longest))
    size = num_blocks * model.kv_spec.block_bytes
    _log.info(
        "drafts come from %s: weights %.1f MiB, KV cache %.1f MiB",
        *(folder.name, model.weight_bytes / 2**20, size / 2**20),
    )
    return DraftModel(model.start().runner, num_blocks, longest)


def _vocabulary(folder: Path) -> Any:
    """Return the tokens of a folder's tokenizer; None where it has none of the usual form."""
    try:
        return json.loads((folder / _TOKENIZER).read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
