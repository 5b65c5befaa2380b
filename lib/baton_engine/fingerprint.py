"""The identity of a model folder, under which workers share KV blocks. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from baton_engine.config_fields import read_json_object
from baton_engine.weight_files import find_weight_files, read_header_bytes

_NUM_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096


def model_fingerprint(folder: Path, kv_variant: str = "", quantization: str = "") -> str:
    """Return a 64-digit hex hash of config.json and, for each weight file, its header, size and samples.

    What else makes the same tokens' keys and values differ is hashed as well: `kv_variant`, see
    `ModelConfig`, and `quantization`, the flag's value or nothing.

    A fine-tuned model has its base model's headers and sizes: the samples, 4 KiB at 16 evenly spaced
    places of each file, tell them apart without reading all weights.

    Raises:
        InvalidModelError: the folder, config.json or weights are missing or unreadable.
    """
    digest = hashlib.sha256()
    config = read_json_object(folder / "config.json")
    _add(digest, json.dumps(config, sort_keys=True, separators=(",", ":")).encode())
    _add(digest, kv_variant.encode())
    _add(digest, quantization.encode())
    for path in find_weight_files(folder):
        _add(digest, path.name.encode())
        _add(digest, read_header_bytes(path))
        size = path.stat().st_size
        _add(digest, str(size).encode())
        with path.open("rb") as file:
            for index in range(_NUM_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * index // (_NUM_SAMPLES - 1))
                _add(digest, file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, part: bytes) -> None:
    """Feed a part with its length in front, so that parts cannot run into each other."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
