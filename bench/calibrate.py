"""Measures how long a model's steps take here, and fits a `StepTiming` to it.

    python -m bench.calibrate --output bench/timings/small_cpu.json

Steps run through the engine's own runner: chunks of a prompt, decodes, and both in one step. Weights are
random numbers (`bench.cpu_step`); the time of a step does not depend on them.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from baton_core.worker.step_plan import StepPlan
from baton_engine.steps.runner import ModelRunner
from baton_kernels.selection import select_kernels
from baton_simulator.capacity.step_timing import StepTiming, TimingProfile, work, write_profile
from bench import cpu_step
from bench.command_line import make_parser

MAX_CONTEXT = 4096
PROMPT_LENGTHS = (32, 128, 256, 512, 1024)
PROMPT_STARTS = (0, 1024, 3072)
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 1024, 4096)
MIXED = ((128, 4), (128, 16), (512, 4), (512, 16))
"""Tokens of a prompt's chunk, and the decodes beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A slice's shape."""

    start: int
    num_tokens: int


def shapes() -> list[list[Piece]]:
    """The steps that are measured."""
    prompts = [
        [Piece(start=start, num_tokens=length)] for start in PROMPT_STARTS for length in PROMPT_LENGTHS
    ]
    decodes = [decode_batch(batch, context) for batch in BATCHES for context in CONTEXTS]
    mixed = [[Piece(start=0, num_tokens=length), *decode_batch(batch, 1024)] for length, batch in MIXED]
    return prompts + decodes + mixed


def decode_batch(batch: int, context: int) -> list[Piece]:
    return [Piece(start=context - 1, num_tokens=1)] * batch


def make_plan(pieces: Sequence[Piece], arguments: argparse.Namespace) -> StepPlan:
    slices = []
    for seq, piece in enumerate(pieces):
        token_ids = [at % min(1000, arguments.vocab_size) for at in range(piece.num_tokens)]
        slices.append(cpu_step.make_slice(seq, token_ids, piece.start + piece.num_tokens, arguments))
    return StepPlan(step_id=0, slices=tuple(slices))


def measure(runner: ModelRunner, plans: Sequence[StepPlan], repeats: int) -> list[float]:
    """Median seconds of each plan; the plans take turns."""
    times: list[list[float]] = [[] for _ in plans]
    for number in range(repeats + 1):
        for plan, taken in zip(plans, times, strict=True):
            start = time.perf_counter()
            runner.execute(plan)
            if number:  # the first round warms up
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def fit(amounts: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[StepTiming, float]:
    """Least squares of the relative errors without negative constants, and the mean relative error.

    Args:
        amounts: `work` of each step.
    """
    measured = np.array(seconds)
    rows: NDArray[np.float64] = np.array(amounts, np.float64) / measured[:, None]
    columns = list(range(rows.shape[1]))
    costs = np.zeros(rows.shape[1])
    while columns:
        found, *_ = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)
        if (found >= 0).all():
            costs[columns] = found
            break
        columns.pop(int(np.argmin(found)))
    names = StepTiming.__struct_fields__
    error = float(np.abs(rows @ costs - 1).mean())
    return StepTiming(**dict(zip(names, costs.tolist(), strict=True))), error


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", choices=cpu_step.DTYPES, default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7, help="rounds of all steps")
    parser.add_argument("--output", type=Path, help="file for the profile")
    for name, default in cpu_step.SMALL.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    arguments = parser.parse_args()
    arguments.small, arguments.batch, arguments.context = True, [max(BATCHES) + 1], MAX_CONTEXT
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    kernels = select_kernels("cpu", cpu_step.DTYPES[arguments.dtype])
    runner, weight_bytes = cpu_step.make_runner(arguments, kernels)
    steps = shapes()
    plans = [make_plan(pieces, arguments) for pieces in steps]
    seconds = measure(runner, plans, arguments.repeats)
    amounts = [work(plan.slices) for plan in plans]
    timing, error = fit(amounts, seconds)
    for pieces, taken, amount in zip(steps, seconds, amounts, strict=True):
        fitted = sum(cost * size for cost, size in zip(timing.costs(), amount, strict=True))
        name = f"{len(pieces)} slices, first {pieces[0].num_tokens} tokens from {pieces[0].start}"
        print(f"{name:>44}{taken * 1e3:10.2f} ms{fitted * 1e3:10.2f} fitted")
    profile = TimingProfile(
        model=f"a random Qwen2 decoder of {arguments.num_hidden_layers} layers, hidden size "
        f"{arguments.hidden_size}, {weight_bytes / 1e6:.0f} MB of {arguments.dtype} weights",
        machine=f"{cpu_name()}, {arguments.threads} of {os.cpu_count()} cores",
        is_measured=True,
        source=" ".join(["python", "-m", "bench.calibrate", *sys.argv[1:]]),
        kv_bytes_per_token=runner.spec.block_bytes // runner.spec.block_size,
        timing=timing,
        mean_error=error,
    )
    print(f"{profile}\n{timing}\nmean relative error of the fit: {error:.0%}")
    if arguments.output is not None:
        write_profile(arguments.output, profile)


if __name__ == "__main__":
    main()
