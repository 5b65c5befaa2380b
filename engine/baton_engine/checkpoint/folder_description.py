"""The description of a model's folder, on which routers and workers agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from baton_core.model.model_description import ModelDescription, describe_model
from baton_engine.checkpoint.model_config import ModelConfig, read_eos_token_ids
from baton_engine.checkpoint.model_fields import read_model_fields
from baton_engine.checkpoint.quantization.separate_files import read_separate_file


def describe_folder(
    folder: Path, config: ModelConfig, overrides: Mapping[str, Any] = MappingProxyType({})
) -> ModelDescription:
    """Return what a model's folder says beside its weights and its tokenizer, under `overrides`."""
    fields = read_model_fields(folder, overrides)
    separate = read_separate_file(fields, folder)
    if separate is not None:
        fields = fields.updated({"quantization_config": separate.values()})
    return describe_model(fields.values(), read_eos_token_ids(folder, fields), config.vocab_size)
