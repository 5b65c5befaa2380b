"""Checks a folder with a new version of a model's weights, without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.folder_description import describe_folder
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.loading import ReadModel
from baton_engine.models.registry import read_model_config
from baton_engine.pooling.pooler import digest_with_pooling
from baton_sandbox.model_files import check_links


def check_weights(folder: Path, model: ReadModel, overrides: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Read all weights of `folder` and return their hash, as `WeightReader.digest`.

    They are fit for the model if each of its tensors is there in its shape, as finite numbers. A
    config.json beside them must say what the model's says; `overrides` come before the values of both.
    Reads one part of a tensor at a time; any thread may call it.

    Raises:
        InvalidModelError: a file or a tensor is missing or damaged, or a tensor has another shape, a dtype
            that is none of weights, or a number that is not finite.
        IncompatibleWorkerError: its config.json is of another model.
    """
    if not model.shapes:
        text = "weights of a model that Transformers computes cannot be updated"
        raise InvalidModelError(f"{text}; allowed: start the workers again with --model {folder}")
    if not folder.is_absolute():
        raise InvalidModelError(f"path is {str(folder)!r}; allowed: an absolute path of a folder")
    try:
        return _read(folder, model, overrides)
    except OSError as error:
        text = f"path is {str(folder)!r:.200} ({error.strerror}); allowed: a folder that the worker can read"
        raise InvalidModelError(text) from None


def _read(folder: Path, model: ReadModel, overrides: Mapping[str, Any]) -> str:
    if folder.is_dir():
        check_links(folder)
    weights = WeightReader(folder, torch.float32)
    if (folder / "config.json").exists():
        theirs = describe_folder(folder, read_model_config(folder, overrides=overrides), overrides)
        model.description.require_same(theirs, "the model that is served")
    for name, shape in model.shapes.items():
        weights.require_finite(name, shape)
    return digest_with_pooling(weights, model.pooling)
