"""The limits of an engine's LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """The limits of an engine that takes adapters; those of a step are the scheduler's."""

    max_rank: int = 16
    max_cpu_loras: int = 1
    """Adapters that are kept loaded."""
