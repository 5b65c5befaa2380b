"""What one client is still to receive: text made of its request's tokens, then one end.

The router fills it, the client's call empties it; both on the router's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from baton_core.errors import ErrorCode, RequestError
from baton_core.router_events import FinishRequest
from baton_core.router_messages import RequestSpec, SequenceOutput
from baton_proto.v1 import baton_pb2 as pb
from baton_router.request_text import RequestText
from baton_router.tokenization import Tokenizer

MAX_WAITING_EVENTS: Final = 1024
"""Events per sequence that may wait for a client."""


class ClientStream:
    """A bounded buffer of one request's events."""

    def __init__(
        self, spec: RequestSpec, tokenizer: Tokenizer, *, max_waiting_events: int = MAX_WAITING_EVENTS
    ) -> None:
        self._text = RequestText(spec, tokenizer)
        self._max_waiting = max_waiting_events * spec.params.n
        self._events: deque[pb.GenerateEvent] = deque()
        self._error: RequestError | None = None
        self._is_complete = False
        self._wake = asyncio.Event()

    @property
    def spec(self) -> RequestSpec:
        return self._text.spec

    @property
    def request_id(self) -> str:
        return self._text.spec.request_id

    @property
    def num_sent_tokens(self) -> int:
        """Tokens in all events there ever were."""
        return self._text.num_tokens

    def push(self, output: SequenceOutput) -> bool:
        """Queue new tokens; True if a stop string ends the sequence here while its worker goes on.

        Raises:
            RequestError: OVERLOADED, the client leaves too many events unread; they are dropped.
        """
        event, is_stopped = self._text.push(output)
        if event is not None:
            self._queue(pb.GenerateEvent(tokens=event))
        return is_stopped

    def finish(self, finished: FinishRequest) -> None:
        """Queue the last event."""
        self._append(pb.GenerateEvent(finished=self._text.finish(finished)))
        self._is_complete = True

    def fail(self, error: RequestError) -> None:
        """End with `error`, after what waits already."""
        self._error = error
        self._wake.set()

    async def next_event(self) -> pb.GenerateEvent | None:
        """Wait for the next event; None after the last.

        Raises:
            RequestError: the request failed.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft()

    def _queue(self, event: pb.GenerateEvent) -> None:
        if len(self._events) >= self._max_waiting:
            self._events.clear()
            text = f"the client reads too slowly: {self._max_waiting} events wait for it, the maximum"
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._append(event)

    def _append(self, event: pb.GenerateEvent) -> None:
        self._events.append(event)
        self._wake.set()
