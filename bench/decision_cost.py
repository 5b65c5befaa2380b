"""CPU time of a placement, and memory of the prefix index, by the number of workers and of blocks.

    python -m bench.decision_cost --workers 10 100 1000 --blocks 10000000

For each number of workers a process of its own, one thread, no sockets: a fleet whose workers hold so many
distinct blocks in all, and prompts of 32,000 tokens. All workers hold a prompt's first 64 blocks, one of them
all, two half of it. `apart` is the worst case: each holds another length of it. Hashing a prompt is timed by
itself; it depends on the prompt alone. Times are CPU time of the thread. `yardstick` is a loop of a million
additions, by which runs on a busy machine can be compared with others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from random import Random

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.model.model_identity import ModelIdentity
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad, WorkerRates
from baton_router.core.admission.assignment import Assignment, prompt_hashes
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.placement.placement_config import PlacementConfig
from bench.command_line import make_parser

BLOCK_SIZE = 32
NUM_PROMPT_TOKENS = 32_000
NUM_PROMPT_BLOCKS = NUM_PROMPT_TOKENS // BLOCK_SIZE
NUM_COMMON_BLOCKS = 64
NUM_PROMPTS = 20
DELTA_BLOCKS = 4096
ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED)
IDENTITY = ModelIdentity(
    weights="bench", dtype="bfloat16", block_size=BLOCK_SIZE, kv_layout="LKHTD", transport="tcp"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    spec: RequestSpec
    assignment: Assignment
    hashes: list[bytes]


class FilledFleet:
    """A fleet whose index is full, and prompts that it knows."""

    def __init__(self, num_workers: int, num_blocks: int) -> None:
        self.rng = Random(num_workers)
        self.fleet = Fleet()
        self.names = [f"worker-{number}" for number in range(num_workers)]
        for number, name in enumerate(self.names):
            self.fleet.join(_info(name, ROLES[number % len(ROLES)]))
            self.fleet.report(0.0, name, self._load())
        before = _resident_bytes()
        self._fill(num_blocks // num_workers)
        self.bytes_per_block = (_resident_bytes() - before) / num_blocks
        self.usual = [self._prompt(number) for number in range(NUM_PROMPTS)]
        self.apart = [self._prompt(NUM_PROMPTS + number) for number in range(NUM_PROMPTS)]
        for prompt in self.usual:
            one, *halves = self.rng.sample(self.names, 3)
            for name in self.names:
                length = NUM_PROMPT_BLOCKS if name == one else NUM_PROMPT_BLOCKS // 2 if name in halves else 0
                self._store(name, prompt.hashes[: max(length, NUM_COMMON_BLOCKS)])
        for prompt in self.apart:
            for name in self.names:
                self._store(name, prompt.hashes[: self.rng.randint(1, NUM_PROMPT_BLOCKS)])

    def _fill(self, num_blocks: int) -> None:
        for name in self.names:
            for start in range(0, num_blocks, DELTA_BLOCKS):
                count = min(DELTA_BLOCKS, num_blocks - start)
                self._store(name, [self.rng.randbytes(16) for _ in range(count)])

    def _store(self, name: str, hashes: list[bytes]) -> None:
        self.fleet.apply_delta(name, CacheDelta(stored=tuple(hashes)))

    def _prompt(self, number: int) -> Prompt:
        token_ids = tuple(self.rng.randrange(100_000) for _ in range(NUM_PROMPT_TOKENS))
        params = SamplingParams(max_tokens=100, seed=1)
        spec = RequestSpec(request_id=f"r{number}", prompt_token_ids=token_ids, params=params)
        assignment = Assignment(spec, PlacementConfig(), self.fleet)
        return Prompt(spec, assignment, prompt_hashes(spec, IDENTITY))

    def _load(self) -> WorkerLoad:
        rates = WorkerRates(
            prefill_tokens_per_s=self.rng.uniform(5e3, 2e4),
            decode_step_s=self.rng.uniform(0.01, 0.03),
            pull_bytes_per_s=self.rng.uniform(1e9, 1e10),
        )
        queued = self.rng.randrange(50_000)
        return WorkerLoad(num_available_blocks=50_000, num_queued_tokens=queued, rates=rates)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument(
        "--blocks", type=int, default=10_000_000, help="distinct ones, of all workers together"
    )
    parser.add_argument("--repeats", type=int, default=200, help="decisions of each kind")
    args = parser.parse_args()
    titles = (
        "workers",
        "hashing, µs",
        "lookup and snapshot, µs",
        "decision, µs",
        "p99",
        "apart, µs",
        "p99",
        "bytes/block",
        "drop, µs",
        "sweep, s",
        "its slices, p99 ms",
        "yardstick, ms",
    )
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for num_workers in args.workers:
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
            print(process.submit(_row, num_workers, args.blocks, args.repeats).result(), flush=True)


def _row(num_workers: int, num_blocks: int, repeats: int) -> str:
    filled = FilledFleet(num_workers, num_blocks)
    hashing = _times(lambda prompt: prompt_hashes(prompt.spec, IDENTITY), filled.usual, NUM_PROMPTS)
    for prompt in (*filled.usual, *filled.apart):
        _decide(prompt)
    lookup = _times(
        lambda prompt: filled.fleet.views(NUM_PROMPT_TOKENS, prompt.hashes), filled.usual, repeats
    )
    usual, apart = _times(_decide, filled.usual, repeats), _times(_decide, filled.apart, repeats)
    started = time.thread_time()
    filled.fleet.leave(filled.names[0])
    drop_s = time.thread_time() - started
    slices = _times(lambda _: filled.fleet.sweep(), filled.usual, repeats)
    while filled.fleet.needs_sweep:
        slices += _times(lambda _: filled.fleet.sweep(), filled.usual, 1)
    figures = [
        f"{statistics.median(hashing) * 1e6:,.0f}",
        f"{statistics.median(lookup) * 1e6:,.0f}",
        *(
            f"{value * 1e6:,.0f}"
            for times in (usual, apart)
            for value in (statistics.median(times), _p99(times))
        ),
        f"{filled.bytes_per_block:.0f}",
        f"{drop_s * 1e6:.0f}",
        f"{sum(slices):.2f}",
        f"{_p99(slices) * 1e3:.2f}",
        f"{_yardstick_s() * 1e3:.0f}",
    ]
    return f"| {num_workers:,} | " + " | ".join(figures) + " |"


def _decide(prompt: Prompt) -> None:
    prompt.assignment.choose(0.0)
    prompt.assignment.release()


def _times(call: Callable[[Prompt], object], prompts: list[Prompt], count: int) -> list[float]:
    """CPU seconds of each call, on the prompts in turn."""
    times = []
    for prompt, _ in zip(cycle(prompts), range(count), strict=False):
        started = time.thread_time()
        call(prompt)
        times.append(time.thread_time() - started)
    return times


def _yardstick_s() -> float:
    started, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return time.thread_time() - started


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _info(name: str, role: Role) -> WorkerInfo:
    return WorkerInfo(
        worker_id=name,
        epoch=1,
        role=role,
        identity=IDENTITY,
        max_model_len=128_000,
        vocab_size=100_000,
        num_blocks=100_000,
        max_num_seqs=256,
        peer_address="tcp://127.0.0.1:1",
        kv_description=b"",
        block_bytes=4 * 2**20,
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
