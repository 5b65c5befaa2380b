"""The answers of a worker to those who watch it: metrics, probes, and a drain that its own machine asks for.

Called on the threads of a server. Each question goes to the worker's loop, so a loop that hangs is not live.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from http import HTTPStatus
from typing import Final, Protocol, TypeVar

from baton_service.exposition import Exposition
from baton_service.keys import Keys
from baton_worker.core.controls import OpenWork

T = TypeVar("T")
Answer = tuple[HTTPStatus, bytes]
ANSWER_WITHIN_S: Final = 2.0
STARTING: Final = "still starting"
_KEYLESS: Final = frozenset({"/health", "/live", "/ready", "/started"})
_PATHS: Final = ("/metrics", *sorted(_KEYLESS))
_DRAIN: Final = "/drain"


class Observed(Protocol):
    """The source of health and metrics, called on its loop."""

    @property
    def problem(self) -> str:
        """The problem in a line; empty while healthy."""
        ...

    @property
    def why_not_ready(self) -> str:
        """The reason why it takes no new requests, in a line; empty while it does."""
        ...

    def exposition(self) -> Exposition:
        """Return all samples as they are now; nothing changes them later."""
        ...


class Probes:
    """The answers of a worker. Until it has something to `watch`, the worker is starting.

    Args:
        loop: the worker's loop.
        metrics_keys: what /metrics needs; without any, everybody may ask.
        drain_keys: what /drain needs besides a call from this machine.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics_keys: Keys, drain_keys: Keys) -> None:
        self._loop = loop
        self._metrics_keys = metrics_keys
        self._drain_keys = drain_keys
        self._observed: Observed | None = None
        self._drain: Callable[[], OpenWork] | None = None

    def watch(self, observed: Observed, drain: Callable[[], OpenWork] | None = None) -> None:
        """Answer for `observed` from now on, and have `drain` called on the loop."""
        self._observed, self._drain = observed, drain

    @property
    def is_started(self) -> bool:
        """True once there is something to watch."""
        return self._observed is not None

    @property
    def why_not_ready(self) -> str:
        """The reason why the worker takes no new requests; empty while it does. Read on the loop."""
        return STARTING if self._observed is None else self._observed.why_not_ready

    def get(self, path: str, authorization: str) -> Answer:
        """Answer a GET."""
        if path not in _KEYLESS and self._metrics_keys.tenant(authorization) is None:
            return HTTPStatus.UNAUTHORIZED, b"allowed: Authorization: Bearer and a key of this worker\n"
        if path not in _PATHS:
            return HTTPStatus.NOT_FOUND, f"allowed: {', '.join(_PATHS)}\n".encode()
        return self._within_time(lambda: self._get(path))

    def post(self, path: str, authorization: str, *, is_local: bool, is_page: bool = False) -> Answer:
        """Answer a POST.

        Args:
            is_local: it comes from this machine.
            is_page: it comes from a page in a browser; the worker has no pages of its own.
        """
        if self._drain_keys.tenant(authorization) is None:
            return HTTPStatus.UNAUTHORIZED, b"allowed: Authorization: Bearer and a key of this worker\n"
        if path != _DRAIN:
            return HTTPStatus.NOT_FOUND, f"allowed with POST: {_DRAIN}\n".encode()
        if not is_local:
            return HTTPStatus.FORBIDDEN, b"allowed: a call over the loopback interface\n"
        if is_page:
            return HTTPStatus.FORBIDDEN, b"allowed: a call without Origin and Sec-Fetch-Site, of no page\n"
        if self._drain is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"{STARTING}\n".encode()
        drain = self._drain
        return self._within_time(lambda: (HTTPStatus.OK, json.dumps(asdict(self._ask(drain))).encode()))

    def _get(self, path: str) -> Answer:
        observed = self._observed
        if path == "/live":
            self._ask(lambda: None)
            return HTTPStatus.OK, b""
        if observed is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"{STARTING}\n".encode()
        match path:
            case "/metrics":
                return HTTPStatus.OK, self._ask(observed.exposition).text()
            case "/started":
                return HTTPStatus.OK, b""
            case "/ready":
                return _verdict(self._ask(lambda: observed.why_not_ready))
            case _:
                return _verdict(self._ask(lambda: observed.problem))

    def _within_time(self, answer: Callable[[], Answer]) -> Answer:
        try:
            return answer()
        except TimeoutError:
            text = f"the service's loop did not answer within {ANSWER_WITHIN_S:g} s\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, text.encode()

    def _ask(self, question: Callable[[], T]) -> T:
        """Have the loop answer.

        Raises:
            TimeoutError: it does not in time.
        """
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(question())
            except Exception as error:
                future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(answer)
        except RuntimeError:
            raise TimeoutError("the loop is closed") from None
        return future.result(ANSWER_WITHIN_S)


def _verdict(problem: str) -> Answer:
    return (HTTPStatus.SERVICE_UNAVAILABLE, f"{problem}\n".encode()) if problem else (HTTPStatus.OK, b"")
