"""The tensors that a model's weight files hold, whatever their format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.gguf_files import read_gguf_entries
from baton_engine.checkpoint.torch_files import read_torch_entries
from baton_engine.checkpoint.weight_files import (
    TensorEntry,
    is_gguf,
    is_safetensors,
    read_entries,
    read_weight_map,
)


def read_table(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of one weight file of any format, by name."""
    if is_gguf(path):
        return read_gguf_entries(path)
    return read_entries(path) if is_safetensors(path) else read_torch_entries(path)


def read_tables(paths: Sequence[Path]) -> dict[str, TensorEntry]:
    """Return the tensors of a model's files, by name; of several of one name that which the index names.

    Raises:
        InvalidModelError: a file is damaged, or the index names none of the files with a tensor.
    """
    found: dict[str, list[TensorEntry]] = {}
    for path in paths:
        for name, entry in read_table(path).items():
            found.setdefault(name, []).append(entry)
    has_twice = any(len(entries) > 1 for entries in found.values())
    weight_map = read_weight_map(paths[0]) if has_twice else {}
    return {name: _choose(name, entries, weight_map.get(name)) for name, entries in found.items()}


def _choose(name: str, entries: list[TensorEntry], file: str | None) -> TensorEntry:
    if len(entries) == 1:
        return entries[0]
    chosen = next((entry for entry in entries if entry.path.name == file), None)
    if chosen is None:
        names = ", ".join(entry.path.name for entry in entries)
        text = f"{entries[0].path.parent}: tensor {name} is in {names}; allowed: that which the index names"
        raise InvalidModelError(text)
    return chosen
