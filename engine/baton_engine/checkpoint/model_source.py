"""Finds a model's folder: a local path, or a Hugging Face id fetched through its cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.weight_files import find_gguf
from baton_sandbox.model_files import check_links

_PATTERNS: Final = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "merges.txt"]
_TORCH_PATTERNS: Final = ["pytorch_model*.bin"]
"""Fetched only where a model has no safetensors: many are published as both."""
_ALLOWED: Final = "a local model folder, or a Hugging Face id that is cached or whose hub can be reached"


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    cache_dir: str | None = None,
    token: str | None = None,
    field: str = "model",
) -> Path:
    """Return the local folder of `model`; an id is downloaded where it is not in the cache, or `cache_dir`.

    A GGUF file stands for its folder, which holds its config.json and no other weights.

    Without a `token` the one of the Hub's own login is used. `field` is what an error calls the model.

    Raises:
        InvalidModelError: there is no such folder, and the hub does not have it or cannot be reached; or a
            file of the folder is a link to somewhere else.
    """
    path = Path(model)
    if path.suffix == ".gguf" and path.is_file():
        if find_gguf(path.parent) != path:
            raise InvalidModelError(
                f"{field} is {model!r}; allowed: a GGUF file without other weights beside it"
            )
        path = path.parent
    if path.is_dir():
        check_links(path)
        return path
    # Slow to load: whoever is given a folder never needs the Hub's client.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        fetch = partial(snapshot_download, model, revision=revision, cache_dir=cache_dir, token=token)
        folder = Path(fetch(allow_patterns=_PATTERNS))
        if not list(folder.glob("*.safetensors")):
            folder = Path(fetch(allow_patterns=_PATTERNS + _TORCH_PATTERNS))
        return folder
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidModelError(f"{field} is {model!r} ({reason}); allowed: {_ALLOWED}") from error
