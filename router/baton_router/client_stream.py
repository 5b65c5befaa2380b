"""What one client is still to receive: text made of its request's tokens, then one end.

The router fills it, the client's call empties it; both on the router's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from baton_core.errors import ErrorCode, RequestError
from baton_core.finish import FinishReason
from baton_core.router_events import FinishRequest
from baton_core.router_messages import RequestSpec, SequenceOutput
from baton_proto.v1 import baton_pb2 as pb
from baton_router.detokenizer import DetokenizedDelta, IncrementalDetokenizer
from baton_router.tokenization import Tokenizer

MAX_WAITING_EVENTS: Final = 1024
"""Events per sequence that may wait for a client."""


class ClientStream:
    """A bounded buffer of events. `num_sent_tokens` counts the tokens in all events there ever were."""

    def __init__(
        self, spec: RequestSpec, tokenizer: Tokenizer, *, max_waiting_events: int = MAX_WAITING_EVENTS
    ) -> None:
        self.spec = spec
        self.num_sent_tokens = 0
        n = spec.params.n
        self._texts = [
            IncrementalDetokenizer(tokenizer, spec.prompt_token_ids, spec.params) for _ in range(n)
        ]
        self._alive = set(range(n))
        self._max_waiting = max_waiting_events * n
        self._events: deque[pb.GenerateEvent] = deque()
        self._error: RequestError | None = None
        self._is_complete = False
        self._wake = asyncio.Event()

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    def push(self, output: SequenceOutput) -> bool:
        """Queue new tokens; True if a stop string ends the sequence here while its worker goes on.

        Raises:
            RequestError: OVERLOADED, the client leaves too many events unread; they are dropped.
        """
        if output.index not in self._alive:
            return False
        reason = output.finish_reason
        delta = self._texts[output.index].append(
            output.token_ids, reason is not None, is_stop_token=reason is FinishReason.STOP
        )
        event = self._tokens_event(output, delta)
        if event.finish_reason:
            self._alive.discard(output.index)
        self.num_sent_tokens += len(event.token_ids)
        self._queue(pb.GenerateEvent(tokens=event))
        return delta.stop_text is not None and reason is None

    def finish(self, finished: FinishRequest) -> None:
        """Queue the last event."""
        self._append(pb.GenerateEvent(finished=self._finished_event(finished)))
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

    def _tokens_event(self, output: SequenceOutput, delta: DetokenizedDelta) -> pb.TokensEvent:
        event = pb.TokensEvent(
            index=output.index, text=delta.text, token_ids=output.token_ids[: delta.num_kept_tokens]
        )
        if delta.stop_text is not None:
            event.finish_reason, event.stop_text = FinishReason.STOP, delta.stop_text
        elif output.finish_reason is not None:
            event.finish_reason = output.finish_reason
            is_stop = output.finish_reason is FinishReason.STOP
            if is_stop and output.token_ids[-1] in self.spec.params.stop_token_ids:
                event.stop_token_id = output.token_ids[-1]
        return event

    def _finished_event(self, finished: FinishRequest) -> pb.FinishedEvent:
        timings = finished.timings
        return pb.FinishedEvent(
            usage=pb.Usage(
                prompt_tokens=finished.num_prompt_tokens,
                completion_tokens=self.num_sent_tokens,
                cached_tokens=finished.num_cached_tokens,
            ),
            timings=pb.Timings(
                queue_s=timings.queue_s,
                prefill_s=timings.prefill_s,
                transfer_s=timings.transfer_s,
                first_token_s=timings.first_token_s,
                total_s=timings.total_s,
                per_token_s=timings.per_token_s,
                transferred_bytes=timings.transferred_bytes,
                prefill_worker=timings.prefill_worker,
                decode_worker=timings.decode_worker,
            ),
            seed=self.spec.params.seed,
            request_id=self.request_id,
        )
