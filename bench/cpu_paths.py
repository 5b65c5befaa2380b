"""Time of decode steps and prompts by each path of kernels that this CPU runs natively, in turns.

    python -m bench.cpu_paths --dtype bfloat16 --batch 1 32 --prompt 512

Every path (`--cpu-kernels`) computes the same random model of `bench.cpu_step` over KV blocks of its own,
once in each round. Prints the fastest times, and how many times as fast as `torch` they are.
"""

from __future__ import annotations

import argparse
import os

from baton import PASSIVE_OPENMP

os.environ.setdefault(*PASSIVE_OPENMP)

import torch

from baton_core.worker.step_plan import StepPlan
from baton_kernels.cpu.variants import TORCH, cpu_flags, usable_variants
from baton_kernels.selection import select_kernels
from bench.command_line import make_parser
from bench.cpu_step import (
    DTYPES,
    QWEN2_387M,
    Contender,
    first_tokens,
    make_runner,
    make_slice,
    make_step,
)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt, and of each context")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="a model of two narrow layers, for a quick run")
    parser.set_defaults(**dict.fromkeys(QWEN2_387M))
    args = parser.parse_args()
    args.context = args.prompt
    return args


def make_prompt(args: argparse.Namespace) -> StepPlan:
    """One sequence's whole context, and a token behind it."""
    token_ids = [3 + 17 * position % 4000 for position in range(args.context)]
    return StepPlan(step_id=0, slices=(make_slice(0, token_ids, args.context, args),))


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    paths = [*(variant.name for variant in usable_variants(cpu_flags())), TORCH]
    tokens = first_tokens(args)
    plans = {f"batch {size}": make_step(tokens[:size], args) for size in args.batch}
    plans[f"prompt of {args.prompt}"] = make_prompt(args)
    contenders: dict[tuple[str, str], Contender] = {}
    for path in paths:
        kernels = select_kernels("cpu", DTYPES[args.dtype], path)
        runner, _ = make_runner(args, kernels)
        contenders |= {(path, work): Contender(runner) for work in plans}
    for _ in range(args.rounds):
        for (_, work), contender in contenders.items():
            contender.run(plans[work])
    print(f"{args.dtype}, {args.threads} threads, the fastest of {args.rounds}")
    print(f"{'path':14}" + "".join(f"{work + ' ms':>20}{'ratio':>8}" for work in plans))
    for path in paths:
        cells = ""
        for work in plans:
            fastest_s = min(contenders[path, work].times_s)
            cells += f"{fastest_s * 1e3:20.1f}{min(contenders[TORCH, work].times_s) / fastest_s:8.2f}"
        print(f"{path:14}{cells}")


if __name__ == "__main__":
    main()
