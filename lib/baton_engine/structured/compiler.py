"""Compiles forms on threads of its own and keeps what it has compiled.

The worker's loop asks for a form to be compiled, the engine thread takes it. A compilation cannot be
interrupted: one that takes too long is refused and goes on alone, and another takes its place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from threading import Lock, Timer
from typing import Final, TypeAlias

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.form_bounds import check_bounds
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.deep_stack import run_deep, start_deep
from baton_engine.structured.interface import EndTokens, Grammar
from baton_engine.structured.selection import AUTO, Backends, check_backend
from baton_engine.structured.vocabulary import Vocabulary

MAX_WAITING: Final = 256
MAX_SECONDS: Final = 20.0
"""Of one compilation."""
MAX_OVERDUE: Final = 4
"""Compilations that are refused and still run; with more, new ones wait until one of them ends."""
MAX_CACHED: Final = 256
MAX_CACHED_BYTES: Final = 256 << 20

_Outcome: TypeAlias = Grammar | InvalidRequestError


class FormCompiler:
    """Of one model. All methods are safe to call from any thread.

    Args:
        eos_token_ids: the tokens that may end an output; without one no form can end.
        num_threads: compilations at a time.
        max_seconds: after which one is refused.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        eos_token_ids: Collection[int],
        *,
        backend: str = AUTO,
        num_threads: int = 2,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        check_backend(backend)
        self._folder = folder
        self._end = EndTokens.of(eos_token_ids, vocab_size)
        self._vocab_size = vocab_size
        self._backend = backend
        self._num_threads = num_threads
        self._max_seconds = max_seconds
        self._lock = Lock()
        self._cache = _Cache()
        self._jobs: dict[StructuredOutputsParams, _Job] = {}
        """Those that wait or run and are awaited."""
        self._waiting: deque[_Job] = deque()
        self._num_running = 0
        self._num_overdue = 0
        self._is_closed = False

    def compile(self, params: StructuredOutputsParams) -> Future[None]:
        """Compile a form that `get` is to return soon; identical ones are compiled once.

        The future ends with InvalidRequestError for a form that is wrong.

        Raises:
            RequestError: OVERLOADED, too many wait; UNAVAILABLE, this is closed.
        """
        with self._lock:
            if self._is_closed:
                raise RequestError(ErrorCode.UNAVAILABLE, "the worker shuts down")
            if (outcome := self._cache.get(params)) is not None:
                return _ended(params, outcome)
            job = self._jobs.get(params)
            if job is None:
                if len(self._waiting) >= MAX_WAITING:
                    text = f"{len(self._waiting)} forms wait to be compiled; allowed: {MAX_WAITING}"
                    raise RequestError(ErrorCode.OVERLOADED, text)
                job = self._jobs[params] = _Job(params)
                self._waiting.append(job)
                self._start_waiting()
            return job.follow()

    def get(self, params: StructuredOutputsParams) -> Grammar:
        """Return a form; compile it here and now where it is not kept any more.

        Raises:
            InvalidRequestError: the form is wrong.
        """
        with self._lock:
            outcome = self._cache.get(params)
        if outcome is None:
            outcome = run_deep("baton-form", partial(self._outcome, params))
            with self._lock:
                self._cache.put(params, outcome)
        if isinstance(outcome, InvalidRequestError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Refuse what waits. What runs ends by itself, and nobody hears of it."""
        with self._lock:
            self._is_closed = True
            jobs = list(self._jobs.values())
            self._jobs.clear()
            self._waiting.clear()
        for job in jobs:
            job.end(RequestError(ErrorCode.UNAVAILABLE, "the worker shuts down"))

    def _start_waiting(self) -> None:
        """Start what there is a place for; those that are overdue take no place of others. Holds the lock."""
        while self._waiting:
            if self._num_running >= self._num_threads + min(self._num_overdue, MAX_OVERDUE):
                return
            self._num_running += 1
            job = self._waiting.popleft()
            job.timer = Timer(self._max_seconds, self._on_overdue, (job,))
            job.timer.daemon = True
            job.timer.start()
            # A thread for each: one that does not come back holds up no other.
            start_deep("baton-form", partial(self._run, job))

    def _run(self, job: _Job) -> None:
        outcome: Grammar | BatonError
        try:
            outcome = self._outcome(job.params)
        except BatonError as error:
            outcome = error
        except BaseException as error:  # a panic, too, ends its request and gives the thread's place back
            outcome = RequestError(ErrorCode.INTERNAL, f"a form cannot be compiled: {error}")
        if job.timer is not None:
            job.timer.cancel()
        with self._lock:
            self._num_running -= 1
            self._num_overdue -= job.is_overdue
            if isinstance(outcome, Grammar | InvalidRequestError):
                self._cache.put(job.params, outcome)
            self._drop(job)
            self._start_waiting()
        job.end(outcome)

    def _on_overdue(self, job: _Job) -> None:
        params = job.params
        allowed = f"a form that is compiled within {self._max_seconds:g} s"
        error = InvalidRequestError(
            f"structured_outputs.{params.form}", getattr(params, params.form), allowed
        )
        with self._lock:
            if self._jobs.get(params) is not job:
                return
            job.is_overdue = True
            self._num_overdue += 1
            self._cache.put(params, error)
            self._drop(job)
            self._start_waiting()
        job.end(error)

    def _drop(self, job: _Job) -> None:
        if self._jobs.get(job.params) is job:
            del self._jobs[job.params]

    def _outcome(self, params: StructuredOutputsParams) -> _Outcome:
        """Compile a form and see that it has a first token."""
        field, value = f"structured_outputs.{params.form}", getattr(params, params.form)
        if not self._end.token_ids:
            return InvalidRequestError(field, value, "None: this model has no token that ends an output")
        try:
            check_bounds(params)
            grammar = self._backends.compile(params)
        except InvalidRequestError as error:
            return error
        if not grammar.new_state().can_begin:
            return InvalidRequestError(field, value, "a form that this model's tokens can be written in")
        return grammar

    @cached_property
    def _backends(self) -> Backends:
        vocabulary = Vocabulary.read(self._folder, self._vocab_size)
        return Backends(vocabulary, self._end, self._backend)


class _Job:
    """A form on its way, and who waits for it."""

    def __init__(self, params: StructuredOutputsParams) -> None:
        self.params = params
        self.timer: Timer | None = None
        self.is_overdue = False
        self._followers: list[Future[None]] = []

    def follow(self) -> Future[None]:
        """Return a future of one that waits; cancelling it cancels nobody else's."""
        future: Future[None] = Future()
        self._followers.append(future)
        return future

    def end(self, outcome: Grammar | BatonError) -> None:
        """Tell all that wait. None comes after that."""
        followers, self._followers = self._followers, []
        for future in followers:
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, BatonError):
                future.set_exception(outcome)
            else:
                future.set_result(None)


class _Cache:
    """The outcomes used last, as many as the bounds allow."""

    def __init__(self) -> None:
        self._outcomes: OrderedDict[StructuredOutputsParams, _Outcome] = OrderedDict()
        self._num_bytes = 0

    def get(self, params: StructuredOutputsParams) -> _Outcome | None:
        if params in self._outcomes:
            self._outcomes.move_to_end(params)
        return self._outcomes.get(params)

    def put(self, params: StructuredOutputsParams, outcome: _Outcome) -> None:
        """Keep an outcome, and as many of the others as fit beside it."""
        if params in self._outcomes:
            self._num_bytes -= _num_bytes(params, self._outcomes.pop(params))
        self._outcomes[params] = outcome
        self._num_bytes += _num_bytes(params, outcome)
        while len(self._outcomes) > MAX_CACHED or (
            len(self._outcomes) > 1 and self._num_bytes > MAX_CACHED_BYTES
        ):
            self._num_bytes -= _num_bytes(*self._outcomes.popitem(last=False))


def _num_bytes(params: StructuredOutputsParams, outcome: _Outcome) -> int:
    return params.num_characters + (outcome.num_bytes if isinstance(outcome, Grammar) else 0)


def _ended(params: StructuredOutputsParams, outcome: _Outcome) -> Future[None]:
    job = _Job(params)
    future = job.follow()
    job.end(outcome)
    return future
