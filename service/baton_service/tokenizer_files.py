"""Hashes the tokenizer in a folder, for workers and routers alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from baton_core.errors import InvalidModelError
from baton_core.model.model_description import tokenizer_digest

_WHOLE: Final = "tokenizer.json"
_VOCABULARY: Final = "vocab.json"
_MERGES: Final = "merges.txt"
"""GPT-2's two files, in folders without tokenizer.json."""


def read_tokenizer_digest(folder: Path) -> str:
    """Return `tokenizer_digest` of the folder's tokenizer; empty where there is none. Blocks on the disk.

    Raises:
        InvalidModelError: a file of it is broken.
    """
    if (folder / _WHOLE).is_file():
        return tokenizer_digest(_read_object(folder / _WHOLE))
    if not ((folder / _VOCABULARY).is_file() and (folder / _MERGES).is_file()):
        return ""
    lines = _read_text(folder / _MERGES).split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    model = {"type": "BPE", "vocab": _read_object(folder / _VOCABULARY), "merges": merges}
    return tokenizer_digest({"model": model})


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InvalidModelError(f"{path} cannot be read ({error.strerror}); allowed: a JSON file") from None
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{path} is not JSON ({error}); allowed: one JSON object") from None
    if not isinstance(value, dict):
        raise InvalidModelError(f"{path} holds {type(value).__name__}; allowed: one JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModelError(f"{path} cannot be read ({error}); allowed: UTF-8 text") from None
