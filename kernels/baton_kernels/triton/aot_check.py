"""Compile every Triton kernel ahead of time and refuse what spills or does not fit; needs no GPU.

`python -m baton_kernels.triton.aot_check [--arch 80 90 ...] [--match TEXT ...]` reports registers, stack and
shared memory of each kernel and exits with 1, naming kernel and figure, when one would be slow (it spills, or
lacks the matrix instruction that it is for) or could not be launched. It is a process of its own: kernels
defined under TRITON_INTERPRET cannot be compiled.
A kernel module offers its variants as `aot_variants()`: the corners of what models ask of it.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton_kernels.triton.kernel_variant import KernelVariant

MAX_SHARED_BYTES: Final = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Shared memory that one thread block may have, by compute capability.

Source: CUDA C++ Programming Guide, technical specifications per compute capability.
"""
DEFAULT_ARCHS: Final = (80, 90, 100)
KERNEL_MODULES: Final = (
    "baton_kernels.triton.decode",
    "baton_kernels.triton.prefill",
    "baton_kernels.triton.cache",
    "baton_kernels.triton.layers",
    "baton_kernels.triton.product",
    "baton_kernels.triton.quantized_product",
    "baton_kernels.triton.input_rounding",
    "baton_kernels.triton.lora",
    "baton_kernels.triton.sampling",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources of one thread (registers, stack) and one thread block (shared memory) of a kernel."""

    num_registers: int
    stack_bytes: int
    shared_bytes: int
    lacks_instruction: bool = False
    """True where the kernel has not become the matrix instruction that its variant names."""

    def complaints(self, arch: int) -> Iterator[str]:
        if self.stack_bytes:
            yield f"spills: {self.stack_bytes} bytes of stack per thread; allowed: 0"
        if self.shared_bytes > MAX_SHARED_BYTES[arch]:
            yield f"shared memory: {self.shared_bytes} bytes; allowed: {MAX_SHARED_BYTES[arch]}"
        if self.lacks_instruction:
            yield "matrix instruction: another; allowed: that of its variant"


def all_variants() -> list[KernelVariant]:
    """Return the variants of every kernel module; imports Triton."""
    return [variant for name in KERNEL_MODULES for variant in importlib.import_module(name).aot_variants()]


def compile_usage(variant: KernelVariant, arch: int) -> Usage:
    """Compile for one architecture and read what the machine code takes."""
    from triton import compile as triton_compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.signature.get(name, "constexpr") for name in names},
        constexprs=dict(variant.constexprs),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned},
    )
    compiled = triton_compile(source, target=GPUTarget("cuda", arch, 32), options=variant.options(arch))
    num_registers, stack_bytes = _resources(compiled.asm["cubin"])
    return Usage(
        num_registers=num_registers,
        stack_bytes=stack_bytes,
        shared_bytes=compiled.metadata.shared,
        lacks_instruction=re.search(variant.instruction or "", compiled.asm["ptx"]) is None,
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack per thread."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    if found is None:
        raise RuntimeError(f"cuobjdump reports no resource usage: {shown!r}")
    return int(found[1]), int(found[2])


def check(variants: Iterable[KernelVariant], archs: Sequence[int]) -> list[str]:
    """Compile and report all, a line each on stdout; return what is wrong, a line per kernel and figure."""
    pairs = [pair for pair in itertools.product(variants, archs) if pair[0].is_for(pair[1])]
    wrong = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        usages = threads.map(lambda pair: compile_usage(*pair), pairs)
        for (variant, arch), usage in zip(pairs, usages, strict=True):
            sys.stdout.write(
                f"sm_{arch} {usage.num_registers:>3} registers {usage.stack_bytes:>5} B stack "
                f"{usage.shared_bytes:>6} B shared  {variant.name}\n"
            )
            wrong += [f"sm_{arch} {variant.name}: {complaint}" for complaint in usage.complaints(arch)]
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m baton_kernels.triton.aot_check", description=__doc__)
    parser.add_argument("--arch", type=int, nargs="+", choices=MAX_SHARED_BYTES, default=list(DEFAULT_ARCHS))
    parser.add_argument("--match", nargs="+", default=[], help="only variants whose name has all of these")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        parser.error("TRITON_INTERPRET is set; interpreted kernels cannot be compiled")
    variants = [variant for variant in all_variants() if all(text in variant.name for text in options.match)]
    wrong = check(variants, options.arch)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
