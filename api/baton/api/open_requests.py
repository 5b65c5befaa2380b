"""The open requests of an engine: their events, and the outputs that its caller has not taken yet."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TypeAlias

from baton.api.metrics import GenerationMetrics
from baton.api.output_builder import OutputBuilder
from baton.api.pooled_output_builder import PooledOutputBuilder
from baton.executors.executor import ExecutorEvent, InboxEvent
from baton.outputs import RequestOutput
from baton.pooling_outputs import PoolingOutput, PoolingRequestOutput
from baton_core.errors import BatonError, EngineDeadError, InvalidRequestError, RequestError

Builder: TypeAlias = OutputBuilder | PooledOutputBuilder
AnyOutput: TypeAlias = RequestOutput | PoolingRequestOutput[PoolingOutput]


class OpenRequests:
    """Gives each event to its request. A request with news is asked for its output when a caller takes it."""

    def __init__(self, metrics: GenerationMetrics) -> None:
        self._metrics = metrics
        self._open: dict[str, Builder] = {}
        self._news: dict[str, Builder] = {}
        """Requests with events since their last output; the ended ones leave with it."""
        self._failures: dict[str, RequestError] = {}
        """The errors that ended requests, by id, until each is raised."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the requests that are not over."""
        return tuple(self._open)

    @property
    def builders(self) -> Mapping[str, Builder]:
        """The requests that are not over."""
        return self._open

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Ids of the requests that are not over, or whose last output or error is not taken yet."""
        return tuple(dict.fromkeys((*self._open, *self._failures, *self._news)))

    def __contains__(self, request_id: object) -> bool:
        """Return whether an unfinished request has the id."""
        return any(request_id in ids for ids in (self._open, self._failures, self._news))

    def __len__(self) -> int:
        """Return the number of requests that are not over."""
        return len(self._open)

    def require_unused(self, request_id: str) -> None:
        """Refuse an id that an unfinished request has.

        Raises:
            InvalidRequestError: it has.
        """
        if request_id in self:
            raise InvalidRequestError("request_id", request_id, "a name that no open request has")

    def add(self, builder: Builder) -> None:
        """Note a request that the executor has taken."""
        self._open[builder.request_id] = builder

    def read(self, events: Iterable[tuple[str, ExecutorEvent]]) -> None:
        """Take the events of a step; those of unknown requests are ignored.

        Raises:
            RequestError: a request failed and has ended; the events of all others are taken. Of several each
                is raised by a call of its own.
        """
        for request_id, event in events:
            if (builder := self._open.get(request_id)) is None:
                continue
            if isinstance(event, BatonError):
                self._failures[request_id] = _failure(request_id, event)
                del self._open[request_id]
                self._news.pop(request_id, None)
                continue
            builder.push(event)
            self._news[request_id] = builder
            if builder.is_over:
                del self._open[request_id]
                self._metrics.finish(builder)
        if self._failures:
            raise self._failures.pop(next(iter(self._failures)))

    def take(self, awaited: Container[str] | None = None) -> list[AnyOutput]:
        """Return what there is to show; with `awaited` only the last outputs of those requests."""
        ready = [
            name
            for name, builder in self._news.items()
            if awaited is None or (builder.is_over and name in awaited)
        ]
        outputs = [self._news.pop(name).take() for name in ready]
        return [output for output in outputs if output is not None]

    def end(self, request_ids: Iterable[str]) -> list[str]:
        """End requests, with `abort` as the reason in their last outputs; returns those that were open."""
        ended = [name for name in dict.fromkeys(request_ids) if name in self._open]
        for name in ended:
            builder = self._news[name] = self._open.pop(name)
            builder.abort()
            self._metrics.finish(builder)
        return ended

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget the outputs and errors of ended requests."""
        for name in request_ids:
            self._news.pop(name, None)
            self._failures.pop(name, None)


def push_event(builder: Builder, event: InboxEvent) -> None:
    """Pass an event to the builder of a request that has an inbox; one that is over takes no more.

    Raises:
        RequestError: the request failed.
    """
    if builder.is_over:
        return
    if isinstance(event, BatonError):
        raise _failure(builder.request_id, event)
    if isinstance(event, str):
        builder.abort()
    else:
        builder.push(event)


def _failure(request_id: str, error: BatonError) -> RequestError:
    kind = EngineDeadError if isinstance(error, EngineDeadError) else RequestError
    return kind(error.code, f"{request_id}: {error}")
