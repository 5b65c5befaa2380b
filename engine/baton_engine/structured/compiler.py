"""Compiles grammars for a worker, and keeps what it has compiled.

Each grammar is first tried in a process that ends when that takes too much; those that are known to be within
bounds are then compiled here, on threads of a low priority. The worker's loop asks for a grammar, the engine
thread takes it. Quick grammars have a lane of their own, so slow ones hold up slow ones alone; within a lane
tenants take turns.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_core.fair_queue import FairQueue
from baton_core.requests.grammar_limits import check_grammar_limits
from baton_core.requests.structured_backends import AUTO, check_backend
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured import trial
from baton_engine.structured.compilation_job import CompilationJob
from baton_engine.structured.grammar_cache import GrammarCache
from baton_engine.structured.interface import EndTokens, Grammar, refusal
from baton_engine.structured.selection import Backends
from baton_engine.structured.vocabulary import Vocabulary
from baton_sandbox.bounded_processes import (
    BoundedProcesses,
    ProcessesUnavailableError,
    TaskEndedError,
    TaskFailedError,
)
from baton_sandbox.deep_stack import run_deep, start_deep
from baton_sandbox.process_limits import ProcessLimits

MAX_WAITING: Final = 256
"""Grammars that wait in all lanes; one more takes the place of the last one of the tenant with the most."""
WAIT_WITHIN_S: Final = 30.0
"""Limit of a request's wait for a grammar."""
MAX_GRAMMAR_BYTES: Final = 128 << 20
_MEMORY_BYTES: Final = 768 << 20
"""Address space of a trial; a deep stack takes a third of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Trials of a kind: what each may take, and how many run at a time."""

    limits: ProcessLimits
    num_places: int


LANES: Final = (
    Lane(limits=ProcessLimits(cpu_s=0.5, wall_s=10.0, memory_bytes=_MEMORY_BYTES, niceness=5), num_places=2),
    Lane(limits=ProcessLimits(cpu_s=4.0, wall_s=25.0, memory_bytes=_MEMORY_BYTES, niceness=19), num_places=1),
)
"""A grammar that a lane's limits end goes on to the next; the last lane's are what a grammar may take."""


class GrammarCompiler:
    """Compiles for one model. All methods are safe to call from any thread.

    Args:
        eos_token_ids: the tokens that may end an output; without one no grammar can end.
        lanes: in the order in which a grammar comes to them.
        warms_up: whether the engine's warm-up follows a grammar.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        eos_token_ids: Collection[int],
        *,
        backend: str = AUTO,
        lanes: Sequence[Lane] = LANES,
        warms_up: bool = True,
    ) -> None:
        self.warms_up = warms_up
        check_backend(backend)
        self._folder = folder
        self._end = EndTokens.of(eos_token_ids, vocab_size)
        self._vocab_size = vocab_size
        self._backend = backend
        self._lock = Lock()
        self._cache = GrammarCache()
        self._jobs: dict[tuple[str, StructuredOutputsParams], CompilationJob] = {}
        """Jobs that wait or run and are awaited."""
        self._num_jobs = 0
        self._lanes = [_LaneState(lane) for lane in lanes]
        self._is_closed = False
        settings = {
            "folder": str(folder),
            "vocab_size": vocab_size,
            "eos_token_ids": sorted(self._end.token_ids),
            "backend": backend,
        }
        self._processes = BoundedProcesses(trial.TARGET, settings)

    def compile(self, params: StructuredOutputsParams, tenant: str = "") -> Future[None]:
        """Compile a grammar that `get` is to return soon; identical ones of a tenant are compiled once.

        The future ends with InvalidRequestError for a grammar that is wrong or takes too much.

        Raises:
            RequestError: OVERLOADED, too many wait; UNAVAILABLE, this is closed.
        """
        with self._lock:
            if self._is_closed:
                raise RequestError(ErrorCode.UNAVAILABLE, "the worker shuts down")
            if (job := self._jobs.get((tenant, params))) is not None:
                return job.follow(time.monotonic())
            self._num_jobs += 1
            now = time.monotonic()
            job = CompilationJob(f"{self._num_jobs}", tenant, params, now)
            future = job.follow(now)
            if (outcome := self._cache.get(params)) is not None:
                job.end(outcome if isinstance(outcome, InvalidRequestError) else None)
                return future
            evicted = self._join(job, 0)
            self._start_waiting()
        if evicted is not None:
            evicted.end(_too_many())
        return future

    def get(self, params: StructuredOutputsParams) -> Grammar:
        """Return a grammar; compile it here and now where it is not kept any more.

        Raises:
            InvalidRequestError: the grammar is wrong.
        """
        with self._lock:
            outcome = self._cache.get(params)
        if outcome is None:
            try:
                outcome = run_deep(partial(self._compile_here, params))
            except InvalidRequestError as error:
                outcome = error
            with self._lock:
                self._cache.put(params, outcome)
        if isinstance(outcome, InvalidRequestError):
            raise outcome
        return outcome

    def refuse(self, params: StructuredOutputsParams, error: InvalidRequestError) -> None:
        """Refuse a grammar from now on: following it has turned out to take too much."""
        with self._lock:
            self._cache.put(params, error)

    def close(self) -> None:
        """Refuse what waits, and end the processes."""
        with self._lock:
            self._is_closed = True
            jobs = list(self._jobs.values())
            self._jobs.clear()
        for job in jobs:
            job.end(RequestError(ErrorCode.UNAVAILABLE, "the worker shuts down"))
        self._processes.close()

    def _join(self, job: CompilationJob, lane_index: int) -> CompilationJob | None:
        """Let a job wait in a lane; return one that has to give way to it. Holds the lock.

        Raises:
            RequestError: OVERLOADED, and it is this job's tenant that has the most.
        """
        lane = self._lanes[lane_index]
        evicted = None
        if sum(len(each.line) for each in self._lanes) >= MAX_WAITING:
            longest = max(self._lanes, key=lambda each: len(each.line))
            evicted = longest.jobs.get(longest.line.last_of_longest() or "")
            if evicted is None or evicted.tenant == job.tenant:
                raise _too_many()
            longest.remove(evicted)
            self._drop(evicted)
        self._jobs[job.key] = job
        lane.add(job)
        return evicted

    def _start_waiting(self) -> None:
        """Start what there is a place for. Holds the lock."""
        for index, lane in enumerate(self._lanes):
            while lane.num_running < lane.lane.num_places and (job := lane.next()) is not None:
                lane.num_running += 1
                try:
                    start_deep(partial(self._run, job, index))
                except RuntimeError as error:  # the system has no room for another thread
                    lane.num_running -= 1
                    self._drop(job)
                    text = f"a grammar cannot be compiled now: {error}"
                    job.end(RequestError(ErrorCode.UNAVAILABLE, text))

    def _run(self, job: CompilationJob, lane_index: int) -> None:
        """Try and compile a grammar, on a thread of its own."""
        lane = self._lanes[lane_index]
        is_last = lane_index + 1 == len(self._lanes)
        outcome: Grammar | BatonError | None
        try:
            if job.is_pending and time.monotonic() - job.asked_s < WAIT_WITHIN_S:
                outcome = self._outcome(job.params, lane.lane.limits)
            else:
                text = f"waited {WAIT_WITHIN_S:g} s for structured_outputs.{job.params.kind} to be compiled"
                outcome = RequestError(ErrorCode.DEADLINE_EXCEEDED, text)
        except TaskEndedError as error:
            outcome = _too_slow(job.params, lane.lane.limits, error) if is_last else None
        except BatonError as error:
            outcome = error
        except BaseException as error:  # a panic, too, ends its request and gives the thread's place back
            outcome = RequestError(ErrorCode.INTERNAL, f"a grammar cannot be compiled: {error}")
        evicted = None
        with self._lock:
            lane.num_running -= 1
            if outcome is None and job.key in self._jobs:
                try:
                    evicted = self._join(job, lane_index + 1)
                except RequestError as error:
                    outcome = error
            if isinstance(outcome, Grammar | InvalidRequestError):
                self._cache.put(job.params, outcome)
            if outcome is not None:
                self._drop(job)
            if not self._is_closed:
                self._start_waiting()
        if evicted is not None:
            evicted.end(_too_many())
        if outcome is not None:
            job.end(outcome if isinstance(outcome, BatonError) else None)

    def _drop(self, job: CompilationJob) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    def _outcome(self, params: StructuredOutputsParams, limits: ProcessLimits) -> Grammar | BatonError:
        """Try a grammar, then compile it, unless its outcome is kept.

        Raises:
            TaskEndedError: the trial took more than it may.
            BatonError: anything else is wrong.
        """
        self._check(params)
        with self._lock:
            outcome = self._cache.get(params)
        if outcome is not None:  # another tenant has asked for it
            return outcome
        backends = self._backends  # raises what is wrong with the model, rather than with the grammar
        try:
            answer = self._processes.run(msgspec.json.encode(params), limits)
            result = msgspec.json.decode(answer, type=trial.TrialResult)
        except TaskFailedError as error:
            raise RequestError(ErrorCode.INTERNAL, f"a grammar cannot be compiled: {error}") from None
        except ProcessesUnavailableError as error:
            raise RequestError(ErrorCode.UNAVAILABLE, f"a grammar cannot be compiled: {error}") from None
        if (refused := result.error(params)) is not None:
            raise refused
        if result.num_bytes > MAX_GRAMMAR_BYTES:
            raise refusal(params, f"what compiles to at most {MAX_GRAMMAR_BYTES >> 20} MiB")
        with suppress(OSError):  # of this thread alone, and of those that the library starts from it
            niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + limits.niceness
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        return self._sized(params, backends.compile(params), result.num_bytes)

    def _compile_here(self, params: StructuredOutputsParams) -> Grammar:
        self._check(params)
        grammar = self._backends.compile(params)
        if not grammar.new_state().can_begin:
            raise refusal(params, trial.ALLOWED)
        return self._sized(params, grammar)

    def _sized(self, params: StructuredOutputsParams, grammar: Grammar, num_bytes: int = 0) -> Grammar:
        """Return a grammar that was just compiled, with its size; `num_bytes` is what its trial took."""
        with self._lock:
            grammar.num_bytes = self._cache.note_size(params, max(grammar.num_bytes, num_bytes))
        return grammar

    def _check(self, params: StructuredOutputsParams) -> None:
        if not self._end.token_ids:
            raise refusal(params, "None: this model has no token that ends an output")
        check_grammar_limits(params)

    @cached_property
    def _backends(self) -> Backends:
        vocabulary = Vocabulary.read(self._folder, self._vocab_size)
        return Backends(vocabulary, self._end, self._backend)


class _LaneState:
    """The jobs of one lane."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.line = FairQueue(aging_s=0.0)
        self.jobs: dict[str, CompilationJob] = {}
        """Jobs that wait, by name."""
        self.num_running = 0

    def add(self, job: CompilationJob) -> None:
        self.line.join(job.name, tenant=job.tenant, num_tokens=1, since_s=job.since_s)
        self.jobs[job.name] = job

    def next(self) -> CompilationJob | None:
        """Take the job whose tenant's turn it is; None where none waits."""
        for name in self.line.dispatch():
            self.line.take(name)
            return self.jobs.pop(name)
        return None

    def remove(self, job: CompilationJob) -> None:
        """Take a job out without its turn."""
        self.line.drop(job.name)
        del self.jobs[job.name]


def _too_slow(params: StructuredOutputsParams, limits: ProcessLimits, error: TaskEndedError) -> BatonError:
    """Tell a grammar that takes too much from a machine that has other work."""
    if error.is_overdue:
        text = f"structured_outputs.{params.kind} was not compiled within {limits.wall_s:g} s"
        return RequestError(ErrorCode.DEADLINE_EXCEEDED, text)
    allowed = f"what compiles within {limits.cpu_s:g} s of processor time and {limits.memory_bytes >> 20} MiB"
    return refusal(params, allowed)


def _too_many() -> RequestError:
    return RequestError(
        ErrorCode.OVERLOADED, f"{MAX_WAITING} grammars wait to be compiled; allowed: {MAX_WAITING}"
    )
