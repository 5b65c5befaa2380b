"""Reads from the router's folder what its workers have to agree with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton_core.errors import InvalidModelError
from baton_core.model.model_description import describe_model
from baton_core.sessions.served_model import ServedModel
from baton_router.text.model_folder import ModelFolder, read_json
from baton_service.tokenizer_files import read_tokenizer_digest


def read_served_model(model: ModelFolder, logits_processors: tuple[str, ...] = ()) -> ServedModel:
    """Return what a worker must say of itself to join; blocks on the disk.

    Args:
        logits_processors: names that requests may ask for.

    Raises:
        InvalidModelError: a file is broken.
    """
    config_path, generation_path = (model.path / name for name in ("config.json", "generation_config.json"))
    config, generation = model.config, read_json(generation_path, is_optional=True)
    eos_token_ids = _eos_token_ids(config_path, config) + _eos_token_ids(generation_path, generation)
    tokenizer = read_tokenizer_digest(model.tokenizer_path)
    return ServedModel(
        description=describe_model(config, eos_token_ids, model.vocab_size, tokenizer),
        vocab_size=model.vocab_size,
        has_chosen_tokenizer=model.tokenizer_path != model.path,
        logits_processors=logits_processors,
    )


def _eos_token_ids(path: Path, values: Mapping[str, Any]) -> list[int]:
    value = values.get("eos_token_id")
    token_ids = value if isinstance(value, list) else [] if value in (None, -1) else [value]
    for token_id in token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            allowed = "a token id, or a list of token ids"
            raise InvalidModelError(f"{path}: eos_token_id is {value!r:.200}; allowed: {allowed}")
    return token_ids
