"""Measure how the attention kernels are best cut on the GPU at hand, and write its entry of the table.

    python -m bench.autotune_gpu                        measure, and rewrite the table in baton_kernels
    python -m bench.autotune_gpu --check --arch 80 90   compile the candidates only; needs no GPU

Candidates that spill registers or need more shared memory than the architecture has are left out before
anything is measured (`baton_kernels.triton.aot_check`). The others are judged by the geometric mean of their
times over the shapes of a class. Workers read the table once, at start; they measure nothing.
"""

from __future__ import annotations

import datetime
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from baton_kernels.triton.aot_check import DEFAULT_ARCHS, MAX_SHARED_BYTES, compile_usage
from baton_kernels.triton.decode import decode, split_variant
from baton_kernels.triton.kernel_configs import (
    TABLE_PATH,
    KernelConfig,
    format_table,
    read_table,
    shape_class,
)
from baton_kernels.triton.kernel_variant import KernelVariant, device_arch
from baton_kernels.triton.prefill import chunk_variant, prefill
from bench.command_line import make_parser
from bench.gpu.attention import Step, make_step
from bench.gpu.measures import Clock, Heads, Setup

DECODES: Final = ((1, 4096), (8, 8192), (32, 2048), (64, 4096))
"""(sequences, context) that decode is judged by."""
PROMPTS: Final = ((1, 1024), (1, 8192), (4, 2048))
"""(sequences, tokens of each) that prefill is judged by."""


def decode_candidates() -> Iterator[KernelConfig]:
    for tile, warps, stages, programs in itertools.product((32, 64, 128), (2, 4, 8), (2, 3, 4), (2, 4, 8)):
        yield KernelConfig(rows=16, tile=tile, num_warps=warps, num_stages=stages, programs_per_sm=programs)


def chunk_candidates() -> Iterator[KernelConfig]:
    for rows, tile, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        yield KernelConfig(rows=rows, tile=tile, num_warps=warps, num_stages=stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A kernel with what can be chosen for it."""

    name: str
    """The name of the kernel's rows in the table."""
    candidates: Callable[[], Iterator[KernelConfig]]
    variant: Callable[..., KernelVariant]
    """Makes a variant from the dtypes of queries and pool, the group, the cap and a configuration."""
    steps: tuple[tuple[int, int, int], ...]
    """(sequences, new tokens, context)."""
    launch: Callable[..., None]


KERNELS: Final = (
    Tuned(
        name="attention_splits",
        candidates=decode_candidates,
        variant=partial(split_variant, block_size=32, num_seqs=32),
        steps=tuple((num_seqs, 1, context) for num_seqs, context in DECODES),
        launch=decode,
    ),
    Tuned(
        name="attention_chunks",
        candidates=chunk_candidates,
        variant=partial(chunk_variant, block_size=32),
        steps=tuple((num_seqs, length, length) for num_seqs, length in PROMPTS),
        launch=prefill,
    ),
)
HEADS: Final = (
    Heads(name="head 64", num_q_heads=14, num_kv_heads=2, head_dim=64),
    Heads(name="head 128", num_q_heads=32, num_kv_heads=8, head_dim=128),
    Heads(name="head 256", num_q_heads=16, num_kv_heads=8, head_dim=256),
)
"""One for each shape class of the element types that GPUs serve in."""


def fitting(tuned: Tuned, heads: Heads, arch: int) -> list[KernelConfig]:
    """The candidates that neither spill nor exceed the shared memory of `arch`, whatever the pool's type."""
    group = heads.num_q_heads // heads.num_kv_heads

    def fits(config: KernelConfig) -> bool:
        variants = [
            tuned.variant(torch.bfloat16, kv_dtype, heads.head_dim, group, is_capped=capped, config=config)
            for kv_dtype, capped in ((torch.bfloat16, False), (torch.float8_e4m3fn, True))
        ]
        usages = (compile_usage(variant, arch) for variant in variants if variant.is_for(arch))
        return not any(complaint for usage in usages for complaint in usage.complaints(arch))

    def compiled(config: KernelConfig) -> tuple[int, ...]:
        return (config.rows, config.tile, config.num_warps, config.num_stages)

    candidates = list(tuned.candidates())
    distinct = {compiled(config): config for config in candidates}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        verdicts = dict(zip(distinct, threads.map(fits, distinct.values()), strict=True))
    return [config for config in candidates if verdicts[compiled(config)]]


def best(costs: dict[KernelConfig, Sequence[float]]) -> KernelConfig:
    """The one with the least geometric mean over its times."""
    return min(costs, key=lambda config: math.fsum(math.log(seconds) for seconds in costs[config]))


def measure(tuned: Tuned, heads: Heads, setup: Setup, clock: Clock, ends_s: float) -> KernelConfig:
    """Time every candidate that fits, until the time is over; return the best of them."""
    steps = [make_step(setup, heads, *shape) for shape in tuned.steps]
    costs: dict[KernelConfig, Sequence[float]] = {}
    for config in fitting(tuned, heads, device_arch()):
        if time.monotonic() > ends_s and costs:
            print(f"the time is over after {len(costs)} candidates", file=sys.stderr)
            break
        costs[config] = [clock.seconds(partial(launch, tuned, step, config)) for step in steps]
    return best(costs)


def launch(tuned: Tuned, step: Step, config: KernelConfig) -> None:
    out = torch.empty_like(step.q)
    tuned.launch(out, step.q, step.kv_pool, 0, step.batch, step.scale, None, config=config)


def check(archs: Sequence[int]) -> None:
    """Print how many candidates fit each architecture."""
    for arch, tuned, heads in itertools.product(archs, KERNELS, HEADS):
        kept, num_all = len(fitting(tuned, heads, arch)), len(list(tuned.candidates()))
        print(f"sm_{arch} {tuned.name} {heads.name}: {kept} of {num_all} candidates fit", flush=True)


def tune(minutes: float) -> dict[str, Any]:
    """Measure this device; returns its entry of the table."""
    setup = Setup(device=torch.device("cuda"), dtype=torch.bfloat16, is_quick=False)
    clock, start = Clock(setup, budget_s=0.05), time.monotonic()
    when, where = datetime.date.today().isoformat(), torch.cuda.get_device_name()
    entry: dict[str, Any] = {"measured": f"{when}, {where}, torch {torch.__version__}: bench.autotune_gpu"}
    pairs = list(itertools.product(KERNELS, HEADS))
    for number, (tuned, heads) in enumerate(pairs, start=1):
        ends_s = start + 60 * minutes * number / len(pairs)
        config = measure(tuned, heads, setup, clock, ends_s)
        entry.setdefault(tuned.name, {})[shape_class(setup.dtype, heads.head_dim)] = row_of(config)
        print(f"{tuned.name}, {heads.name}: {row_of(config)}", flush=True)
    return entry


def row_of(config: KernelConfig) -> dict[str, int]:
    """Return a configuration's entry of the table."""
    return {name: value for name, value in asdict(config).items() if value}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="compile the candidates, measure nothing")
    parser.add_argument("--arch", type=int, nargs="+", choices=MAX_SHARED_BYTES, default=list(DEFAULT_ARCHS))
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all kernels together")
    parser.add_argument("--out", type=Path, default=TABLE_PATH, help="the table to rewrite")
    options = parser.parse_args()
    if options.check:
        check(options.arch)
        return
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU; allowed without one: --check")
    table = {**read_table(), str(device_arch()): tune(options.minutes)}
    options.out.write_text(format_table(table))


if __name__ == "__main__":
    main()
