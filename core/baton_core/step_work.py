"""The work of steps, as metrics tell it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Estimated work of one accelerator."""

    flops: float = 0.0
    """Floating-point operations."""
    read_bytes: float = 0.0
    written_bytes: float = 0.0

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(
            flops=self.flops + other.flops,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
        )
