"""Finds a model's folder: a local path, or a Hugging Face id fetched through its cache."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from baton_core.errors import InvalidModelError

_PATTERNS: Final = ["*.json", "*.safetensors", "*.jinja", "tokenizer*"]
_TORCH_PATTERNS: Final = ["pytorch_model*.bin"]
"""Fetched only where a model has no safetensors: many are published as both."""
_ALLOWED: Final = "a local model folder, or a Hugging Face id that is cached or whose hub can be reached"


def resolve_model(model: str) -> Path:
    """Return the local folder of `model`; an id is downloaded where it is not cached.

    Raises:
        InvalidModelError: there is no such folder, and the hub does not have it or cannot be reached.
    """
    if Path(model).is_dir():
        return Path(model)
    try:
        folder = Path(snapshot_download(model, allow_patterns=_PATTERNS))
        if not list(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(model, allow_patterns=_PATTERNS + _TORCH_PATTERNS))
        return folder
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidModelError(f"model is {model!r} ({reason}); allowed: {_ALLOWED}") from error
