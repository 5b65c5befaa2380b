"""Sampling defaults of requests: `--generation-config` and its overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_router.text.model_folder import SAMPLING_FIELDS, ModelFolder, read_json, read_sampling_defaults

MODELS_OWN: Final = "auto"
NONE: Final = "vllm"
_LIMIT: Final = "max_new_tokens"


def with_generation_config(
    model: ModelFolder, source: str = MODELS_OWN, overrides: Mapping[str, Any] | None = None
) -> ModelFolder:
    """Return the model with the sampling defaults that the operator chooses.

    `max_new_tokens` of the overrides or of a folder limits every output too; the model's own is a default.

    Args:
        source: `auto` takes the model's generation_config.json, `vllm` none, else it is a folder with one.
        overrides: keys of a generation_config that come before those of the file.

    Raises:
        InvalidConfigError: there is no such folder, or an override is out of range.
        InvalidModelError: a value of the file is.
    """
    if source == MODELS_OWN and not overrides:
        return model
    for key in overrides or {}:
        if key not in SAMPLING_FIELDS:
            allowed = ", ".join(SAMPLING_FIELDS)
            raise InvalidConfigError(f"override_generation_config has the key {key!r}; allowed: {allowed}")
    generation: dict[str, Any] = {}
    if source != NONE:
        folder = model.path if source == MODELS_OWN else Path(source)
        if not folder.is_dir():
            allowed = f"{MODELS_OWN}, {NONE}, or a folder with a generation_config.json"
            raise InvalidConfigError(f"generation_config is {source!r}; allowed: {allowed}")
        path = folder / "generation_config.json"
        generation = read_json(path, is_optional=source == MODELS_OWN)
        read_sampling_defaults(path, generation)
    try:
        defaults = read_sampling_defaults(
            Path("override_generation_config"), generation | dict(overrides or {})
        )
    except InvalidModelError as error:
        raise InvalidConfigError(str(error)) from error
    chosen = generation if source not in (MODELS_OWN, NONE) else {}
    limit = (chosen | dict(overrides or {})).get(_LIMIT)
    return replace(model, sampling_defaults=defaults, max_output_tokens=limit)
