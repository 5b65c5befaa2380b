"""The executors of the Python interface: everything in this process, or processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from baton_core.distribution import Distribution
from baton_core.errors import BatonError
from baton_core.requests.pooling import PoolingModel
from baton_core.sessions.router_messages import RequestSpec
from baton_core.step_work import StepWork
from baton_router.requests.generation import Finished, GenerationEvent
from baton_worker.controls.engine_operations import Control
from baton_worker.core.speculation.draft_counts import DraftCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLoad:
    """The current load of all workers together."""

    num_running: int = 0
    """Sequences."""
    num_waiting: int = 0
    """Sequences that wait for a place in a step."""
    num_deferred: int = 0
    """Sequences that wait for what they need before that, such as a grammar."""
    kv_cache_usage: float = 0.0
    """Share of the blocks that are in use: 0 to 1."""
    num_preemptions: int | None = None
    """Sequences whose blocks were taken for others; None where workers tell of it themselves."""
    drafts: DraftCounts | None = None
    """Counts of speculation; None where nothing is drafted, or workers tell of it themselves."""
    step_tokens: Distribution | None = None
    """Tokens that each step computed; None where workers tell of it themselves."""
    work: StepWork | None = None
    """Work of all steps, for each accelerator; None where it is not estimated."""
    block_residency: tuple[Distribution, ...] = ()
    """Lifetimes, idle times and reuse gaps of sampled KV blocks; empty where none are."""


ExecutorEvent: TypeAlias = GenerationEvent | BatonError
"""An event of one request; an error ends it as `Finished` does."""


class Sized(Protocol):
    """The sizes that an executor finds to fit."""

    max_model_len: int
    num_blocks: int
    """KV blocks of all workers together."""
    pooling: PoolingModel | None
    """Description of what the model pools; None where it generates."""


class Executor(Sized, Protocol):
    """Used by one thread at a time."""

    def submit(self, spec: RequestSpec) -> None:
        """Take a request; its events come with the steps.

        Raises:
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests without further events; ended and unknown ones are ignored."""
        ...

    def step(self) -> list[tuple[str, ExecutorEvent]]:
        """Run one step of the open requests; each event comes with its request's id."""
        ...

    def control(self, command: Control) -> list[Any]:
        """Do what an operator asks; returns each worker's answer.

        Raises:
            InvalidRequestError: it cannot be done here; the message names the field.
        """
        ...

    def load(self) -> ExecutorLoad: ...

    def close(self) -> None: ...


class AsyncExecutor(Sized, Protocol):
    """Used on the caller's loop; only `close` and `load_now` make it wait."""

    @property
    def is_running(self) -> bool:
        """True while the executor can take requests."""
        ...

    def submit(self, spec: RequestSpec, inbox: Inbox) -> None:
        """Take a request; its events, or its error, come into the inbox.

        Raises:
            InvalidRequestError: it cannot be sent; the message names the field.
            RequestError: UNAVAILABLE, nothing runs any more.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request without further events; an ended or unknown one is ignored."""
        ...

    async def control(self, command: Control) -> list[Any]:
        """Do what an operator asks; returns each worker's answer.

        Raises:
            InvalidRequestError: it cannot be done here; the message names the field.
        """
        ...

    async def load(self) -> ExecutorLoad: ...

    def load_now(self) -> ExecutorLoad:
        """Wait for the load, shortly and on any thread, the loop's own among them.

        Raises:
            RequestError: nothing runs any more, or nothing answers.
        """
        ...

    def close(self) -> None: ...


ABORTED: Final = "aborted"
"""Stands for the last event of a request that another caller has aborted."""
InboxEvent = ExecutorEvent | str


class Inbox:
    """Pending events of one asynchronous caller's request, in order; no more than the request's own tokens.

    Made and used on the loop of the caller.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._events: list[InboxEvent] = []
        self._has_events = asyncio.Event()
        self._has_ended = asyncio.Event()

    def put(self, events: Sequence[InboxEvent]) -> None:
        """Add events; never waits."""
        self._events += events
        self._has_events.set()
        if isinstance(events[-1], Finished | BatonError | str):
            self._has_ended.set()

    async def take(self) -> list[InboxEvent]:
        """Wait until there is something; returns all of it."""
        await self._has_events.wait()
        self._has_events.clear()
        events, self._events = self._events, []
        return events

    @property
    def has_ended(self) -> bool:
        """True once the last event has come, read or not, or the caller reads no more."""
        return self._has_ended.is_set()

    def close(self) -> None:
        """Mark that the caller reads no more."""
        self._has_ended.set()

    async def wait_ended(self) -> None:
        """Wait until `has_ended`."""
        await self._has_ended.wait()
