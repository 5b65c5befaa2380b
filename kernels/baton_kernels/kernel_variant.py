"""One Triton kernel with everything its machine code depends on: what a launch and a compile share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVariant:
    """One specialisation of a kernel."""

    kernel: Any
    """The `triton.jit` function."""
    signature: Mapping[str, str]
    """Triton's type of each runtime argument, such as `*bf16` or `i32`."""
    constexprs: Mapping[str, Any]
    aligned: frozenset[str]
    """Runtime arguments that are multiples of 16; without them loads are not vectorised."""
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        """The kernel with what tells its variants apart: the first element type and the constants."""
        constants = (f"{key}={value}" for key, value in self.constexprs.items())
        return f"{self.kernel.__name__}[{', '.join((next(iter(self.signature.values())), *constants))}]"
