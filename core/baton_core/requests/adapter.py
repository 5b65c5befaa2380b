"""A LoRA adapter as requests name it: whose deltas are added to the model's layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter of a request. Two adapters are the same if their digests are."""

    name: str
    """The model name under which clients ask for it."""
    digest: str
    """SHA-256 of its tensors and its scaling, in hexadecimal digits."""
    path: str
    """Its folder, as every worker sees it."""
    number: int = 0
    """The id that a caller in Python gave it; 0 without one."""
    shown_name: str = ""
    """The name that this caller gave it, which workers know it by; empty: `name`."""
