"""One Triton kernel with everything its machine code depends on: what a launch and a compile share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

TRITON_TYPES: Final = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8e4nv",
}
FP8_ARCH: Final = 89
"""The first architecture for which Triton converts e4m3."""
BLACKWELL: Final = 10
"""The major compute capability of those that multiply in tensor memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVariant:
    """One specialisation of a kernel."""

    kernel: Any
    """The `triton.jit` function."""
    signature: Mapping[str, str]
    """Triton's type of each runtime argument, such as `*bf16` or `i32`, in the kernel's order."""
    constexprs: Mapping[str, Any]
    aligned: frozenset[str]
    """Runtime arguments that are multiples of 16; without them loads are not vectorised."""
    num_warps: int
    num_stages: int
    blackwell_registers: int | None = None
    """The most per thread on sm_10x; not told, the assembler there may spill some to fit two programs."""
    min_arch: int = 80
    """The least compute capability, times ten, that has what the kernel needs."""
    only_arch: int = 0
    """The one that it is for, such as that which its configuration was measured on; 0 where it is for all."""
    instruction: str | None = None
    """A regular expression of the matrix instruction without which the variant would be slow."""

    @property
    def name(self) -> str:
        """The kernel with what tells its variants apart: the dtypes and the constants."""
        elements = dict.fromkeys(
            kind for kind in self.signature.values() if kind[0] == "*" and kind != "*i32"
        )
        constants = (f"{key}={value}" for key, value in self.constexprs.items())
        return f"{self.kernel.__name__}[{' '.join(elements)}, {', '.join(constants)}]"

    def options(self, arch: int) -> dict[str, int]:
        """Return the options of a launch and a compile for `arch`."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        if arch // 10 != BLACKWELL or self.blackwell_registers is None:
            return options
        return {**options, "maxnreg": self.blackwell_registers}

    def is_for(self, arch: int) -> bool:
        """Return True if devices of `arch` may launch it."""
        return self.min_arch <= arch and self.only_arch in (0, arch)

    def launch(self, grid: tuple[int, ...], *arguments: Any) -> None:
        """Start the kernel with its runtime arguments, in the order of `signature`."""
        self.kernel[grid](*arguments, **self.constexprs, **self.options(device_arch()))


@cache
def device_arch() -> int:
    """Compute capability of this process's CUDA device times ten; 0 without one, where kernels interpret."""
    if not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@cache
def num_multiprocessors() -> int:
    """Multiprocessors of this process's CUDA device; the interpreter counts as one."""
    if not torch.cuda.is_available():
        return 1
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
