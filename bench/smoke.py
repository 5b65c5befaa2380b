"""Ratios that a change must not halve, in under three minutes: each of two ways to do the same, in one run.

    python -m bench.smoke

Times of one machine say nothing about another one's, ratios of two ways in turns say more: cached prompts
beside uncached ones, many requests at once beside one after the other, drafts beside none, replayed decode
steps beside eager ones, attention of prompts and sums over ranks beside torch's own. Prints each beside what
is expected on two cores; exits with 1 where one is below half of that. The rest is for people to look at.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from baton import LLM, SamplingParams
from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.selection import load_build
from bench import prompt_attention
from bench.command_line import make_parser

ROUNDS: Final = 3
SHARE: Final = 0.5
"""Share of the expected ratio below which this fails."""
NUM_TOKENS: Final = 64
FEW: Final = 32
"""Tokens of each answer where one after the other answers 32 requests."""
LONG: Final = "The os module provides a portable way of using operating system dependent functionality. " * 30
REPEATING: Final = 4 * "def area(width, height):\n    return width * height\n\n"
LOOKUP: Final = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Two ways to do the same, and by how much the first is expected to be faster."""

    name: str
    expected: float
    measure: Callable[[], float]


def main() -> None:
    make_parser(__doc__).parse_args()
    checks = (
        Check(name="a cached prompt beside an uncached one", expected=4.0, measure=cached_prompt),
        Check(name="32 requests at once beside one after the other", expected=3.0, measure=many_at_once),
        Check(name="prompt lookup on text that repeats", expected=1.2, measure=lookup),
        Check(name="replayed decode steps beside eager ones", expected=1.5, measure=replayed),
        Check(name="attention of a prompt beside torch's", expected=1.0, measure=attention),
        Check(name="a sum of 8 KiB over two ranks beside gloo's", expected=4.0, measure=all_reduce),
    )
    is_bad = False
    print(f"{'':50}{'ratio':>8}{'expected':>10}")
    for check in checks:
        ratio = check.measure()
        is_low = ratio < SHARE * check.expected
        is_bad |= is_low
        print(f"{check.name:50}{ratio:8.2f}{check.expected:10.1f}{'  too low' if is_low else ''}", flush=True)
    sys.exit(is_bad)


def llm(**fields: Any) -> LLM:
    """Return the bundled model in this process."""
    return LLM(dtype="float32", kv_cache_memory_bytes=64 << 20, **fields)


def in_turns(one: Callable[[], object], other: Callable[[], object]) -> float:
    """Return how many times as long the second takes as the first, by the fastest turn of each."""
    fewest = [float("inf")] * 2
    for _ in range(ROUNDS + 1):  # the first turn warms up
        for number, call in enumerate((one, other)):
            began_s = time.perf_counter()
            call()
            fewest[number] = min(fewest[number], time.perf_counter() - began_s)
    return fewest[1] / fewest[0]


def greedy(engine: LLM, prompts: list[str], num_tokens: int = NUM_TOKENS) -> list[tuple[int, ...]]:
    """Answer all prompts at once."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    outputs = engine.generate(prompts, params, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def cached_prompt() -> float:
    with llm() as engine:

        def uncached() -> None:
            engine.reset_prefix_cache()
            greedy(engine, [LONG], 1)

        return in_turns(lambda: greedy(engine, [LONG], 1), uncached)


def many_at_once() -> float:
    prompts = [f"The {number}th module" for number in range(32)]
    with llm() as engine:
        return in_turns(
            lambda: greedy(engine, prompts, FEW), lambda: [greedy(engine, [one], FEW) for one in prompts]
        )


def lookup() -> float:
    with llm(speculative_config=LOOKUP) as drafting, llm() as plain:
        assert greedy(drafting, [REPEATING]) == greedy(plain, [REPEATING]), "no token changes"
        return in_turns(lambda: greedy(drafting, [REPEATING]), lambda: greedy(plain, [REPEATING]))


def replayed() -> float:
    with llm() as recorded, llm(enforce_eager=True) as eager:
        return in_turns(lambda: greedy(recorded, ["The os module"]), lambda: greedy(eager, ["The os module"]))


def attention() -> float:
    if (library := load_build()) is None:
        raise SystemExit("this machine has no C++ kernels")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    kernel = CpuAttention(library, is_v_transposed=library.variant.has_tiles)
    ours, theirs = prompt_attention.measure(prompt_attention.SHAPES[0], kernel, 10)
    torch.set_num_threads(num_threads)
    return theirs / ours


def all_reduce() -> float:
    command = (sys.executable, "-m", "bench.all_reduce", "--repeats", "100")
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    row = next(line.split() for line in table.splitlines() if line.split()[1:2] == ["8"])
    return float(row[4]) / float(row[2])


if __name__ == "__main__":
    main()
