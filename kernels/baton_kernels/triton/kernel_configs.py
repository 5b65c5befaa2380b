"""Tiling of the attention kernels for each GPU architecture: a table beside this file, read once.

`kernel_configs.json` maps architecture, kernel and shape class to a configuration. `bench/autotune_gpu.py`
measures a device and writes its entry; architectures without one get the entry `default`. Nothing is measured
while serving, and the batch-invariant mode keeps to the defaults.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

DEFAULT_ARCH: Final = 0
"""Stands for every architecture that nobody has measured, and for the interpreter."""
TABLE_PATH: Final = Path(__file__).with_suffix(".json")
HEAD_PADS: Final = (16, 32, 64, 128, 256)
"""Return the size to which the kernels pad rows of heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """The tiling of an attention kernel; a row of the table."""

    rows: int
    """Rows of the products: query heads that share a tile, in a chunk times tokens."""
    tile: int
    """Keys that are scored together."""
    num_warps: int
    num_stages: int
    programs_per_sm: int = 0
    """In decode, the number of programs for each multiprocessor the keys are split into; 0 for chunks."""


def shape_class(dtype: torch.dtype, head_dim: int) -> str:
    """Name of what shares a configuration: the queries' element size and what a head is padded to."""
    head_pad = next(pad for pad in HEAD_PADS if pad >= head_dim)
    return f"{8 * dtype.itemsize}-bit, head {head_pad}"


@cache
def kernel_config(kernel: str, dtype: torch.dtype, head_dim: int, arch: int) -> KernelConfig:
    """The configuration of `kernel` for queries of `dtype` on devices of `arch`: see `device_arch`."""
    table, name = read_table(), shape_class(dtype, head_dim)
    measured = table.get(str(arch), {}).get(kernel, {})
    return KernelConfig(**(measured.get(name) or table["default"][kernel][name]))


def tuned_archs() -> tuple[int, ...]:
    """`DEFAULT_ARCH` and the architectures that have an entry of their own."""
    return (DEFAULT_ARCH, *(int(name) for name in read_table() if name != "default"))


@cache
def read_table(path: Path = TABLE_PATH) -> dict[str, Any]:
    """Each architecture's entry: `measured`, which says when, where and how, and its kernels' rows."""
    table: dict[str, Any] = json.loads(path.read_text())
    return table


def format_table(table: dict[str, Any]) -> str:
    """The text of the table's file: a line for each configuration."""
    archs = []
    for arch, entry in table.items():
        parts = [f'    "measured": {json.dumps(entry["measured"])}']
        for kernel, rows in entry.items():
            if kernel != "measured":
                lines = (f"      {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
                parts.append(f'    "{kernel}": {{\n' + ",\n".join(lines) + "\n    }")
        archs.append(f'  "{arch}": {{\n' + ",\n".join(parts) + "\n  }")
    return "{\n" + ",\n".join(archs) + "\n}\n"
