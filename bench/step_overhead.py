"""Measures a decode step outside the model: from one step's end to the next one's, with a free model.

    python -m bench.step_overhead --batch 1 32 256 --vocab-size 32000

A worker's core, its engine thread and its loop run as in a worker. The model answers at once with the same
random logits, which lie in memory like those of a head. *core* plans the step and takes its result; *inputs*
are the step's tensors; *sampler* draws; *results* hand tokens back to the core; *loop* is the way between the
threads, there and back. Steps of prompts come before and do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from baton import PASSIVE_OPENMP

os.environ.setdefault(*PASSIVE_OPENMP)

import torch
from torch import Tensor

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.model.model_identity import ModelIdentity
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import Generate, RequestSpec
from baton_core.worker.step_plan import StepPlan, StepResult
from baton_core.worker.worker_events import FromRouter, StepDone
from baton_engine.models.step_attention import StepAttention
from baton_engine.sampling.sampler import Sampler
from baton_engine.steps.engine_thread import EngineThread
from baton_engine.steps.runner import ModelRunner
from baton_kernels.selection import select_kernels
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.core.worker_core import WorkerCore
from bench.command_line import make_parser

P = ParamSpec("P")
T = TypeVar("T")
BLOCK_SIZE = 32
PARTS = ("core", "inputs", "sampler", "results", "loop")
LIMITS_MS = {32: 0.5, 256: 2.0}
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "filtered": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
}


class FreeModel:
    """Its hidden states are nothing, its logits always the same `[max_num_seqs, vocab_size] float32`."""

    dtype = torch.float32
    device = torch.device("cpu")
    is_capturable = False

    def __init__(self, max_num_seqs: int, vocab_size: int, spread: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self._logits = torch.randn(max_num_seqs, vocab_size, generator=generator) * spread

    def forward(self, token_ids: Tensor, attention: StepAttention, rows: Tensor | None = None) -> Tensor:
        return torch.empty(len(token_ids if rows is None else rows), 0)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits[: len(hidden)]


class Clock:
    """Seconds of each part of the step in work."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, part: str, function: Callable[P, T]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds[part] += time.perf_counter() - start
            return result

        return call


class Steps:
    """Runs a core's steps, as a worker's shell does, and keeps what each one cost."""

    def __init__(self, core: WorkerCore, runner: ModelRunner, clock: Clock, num_steps: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._core, self._clock = core, clock
        execute = clock.timed("engine", runner.execute)
        self._engine = EngineThread(lambda plan: partial(execute, plan), self._deliver)
        self._num_steps = num_steps
        self._began_s = 0.0
        self._over = asyncio.Event()
        self.costs: list[dict[str, float]] = []

    async def run(self) -> None:
        self._engine.start()
        self._submit_next()
        await self._over.wait()
        await asyncio.to_thread(self._engine.close, 5.0)

    def _submit_next(self) -> None:
        self._began_s = time.perf_counter()
        plan = self._plan()
        if plan is None or len(self.costs) == self._num_steps:
            self._over.set()
        else:
            self._engine.submit(plan)

    def _plan(self) -> StepPlan | None:
        return self._clock.timed("core", self._core.schedule)(self._loop.time())

    def _deliver(self, result: StepResult | Exception) -> None:
        self._loop.call_soon_threadsafe(self._on_step, result)

    def _on_step(self, result: StepResult | Exception) -> None:
        if isinstance(result, Exception):
            raise result
        self._clock.timed("core", self._core.on_event)(self._loop.time(), StepDone(result=result))
        self._note(time.perf_counter() - self._began_s)
        self._submit_next()

    def _note(self, whole_s: float) -> None:
        seconds, self._clock.seconds = self._clock.seconds, defaultdict(float)
        engine_s = seconds.pop("engine")
        seconds["results"] = engine_s - seconds["inputs"] - seconds["sampler"]
        seconds["loop"] = whole_s - engine_s - seconds["core"]
        self.costs.append({**seconds, "whole": whole_s})


def make_core(num_seqs: int, arguments: argparse.Namespace) -> WorkerCore:
    spec = kv_spec()
    max_model_len = arguments.context + arguments.steps + 64
    config = WorkerConfig(
        worker_id="worker",
        epoch=1,
        identity=ModelIdentity(
            weights="free", dtype="float32", block_size=BLOCK_SIZE, kv_layout=spec.layout, transport="none"
        ),
        kv_spec=spec,
        num_blocks=num_seqs * -(-max_model_len // BLOCK_SIZE),
        max_model_len=max_model_len,
        vocab_size=arguments.vocab_size,
        eos_token_ids=frozenset(),
        is_verified_by_checksum=False,
        scheduler=SchedulerConfig(max_num_seqs=num_seqs),
    )
    core = WorkerCore(config)
    for seq in range(num_seqs):
        params = SamplingParams(seed=seq, max_tokens=max_model_len, **SAMPLING[arguments.sampling])
        prompt = tuple(1 + (seq * 31 + at) % 1000 for at in range(arguments.context))
        request = RequestSpec(request_id=f"request-{seq}", prompt_token_ids=prompt, params=params)
        core.on_event(0.0, FromRouter(router_id="router", message=Generate(spec=request)))
    return core


def kv_spec() -> KVSpec:
    return KVSpec(num_layers=1, num_kv_heads=1, head_dim=1, block_size=BLOCK_SIZE, dtype="float32")


def measure(num_seqs: int, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Return the cost of each decode step of `num_seqs` sequences."""
    clock, kernels = Clock(), select_kernels("cpu")
    core = make_core(num_seqs, arguments)
    model = FreeModel(num_seqs, arguments.vocab_size, arguments.spread)
    sampler = Sampler(kernels.sampling)
    sampler.sample = clock.timed("sampler", sampler.sample)  # type: ignore[method-assign]
    kv_pool = torch.zeros(core.config.num_blocks, *kv_spec().block_shape)
    runner = ModelRunner(model, kernels.attention, kv_pool, kv_spec(), sampler)
    runner._forward = clock.timed("inputs", runner._forward)  # type: ignore[method-assign]
    num_prompt_steps = -(-num_seqs * arguments.context // core.config.scheduler.max_num_batched_tokens)

    async def run() -> list[dict[str, float]]:
        steps = Steps(core, runner, clock, num_prompt_steps + arguments.steps)
        await steps.run()
        return steps.costs[num_prompt_steps + 5 :]

    return asyncio.run(run())


def line(
    name: str, num_seqs: int, costs: list[dict[str, float]], pick: Callable[[list[float]], float]
) -> str:
    cells = [pick([cost[part] for cost in costs]) * 1e3 for part in (*PARTS, "whole")]
    limit = f"{LIMITS_MS[num_seqs]:9.1f}" if num_seqs in LIMITS_MS else ""
    return f"{num_seqs:5}  {name:8}" + "".join(f"{cell:9.3f}" for cell in cells) + limit


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--sampling", choices=SAMPLING, default="greedy")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--spread", type=float, default=2.5, help="standard deviation of the logits")
    parser.add_argument("--context", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.sampling}, {arguments.threads} threads, ms per step")
    print("batch          " + "".join(f"{name:>9}" for name in (*PARTS, "whole", "limit")))
    for num_seqs in arguments.batch:
        costs = measure(num_seqs, arguments)
        print(line("fastest", num_seqs, costs, min))
        print(line("median", num_seqs, costs, statistics.median))


if __name__ == "__main__":
    main()
