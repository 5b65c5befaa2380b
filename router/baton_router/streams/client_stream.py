"""Buffers a request's events for its client: text made of its tokens, then one end.

The router fills it, the client's call empties it; both on the router's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.packed_logprobs import PackedLogprobs
from baton_core.sessions.router_messages import PromptLogprobs, RequestSpec, SequenceOutput
from baton_router.core.router_events import FinishRequest
from baton_router.requests.generation import (
    MAX_JOINED_LOGPROBS,
    Delta,
    GenerationEvent,
    HeldDeltas,
    PromptDelta,
    ReceivedSequence,
    join,
)
from baton_router.requests.request_reader import PreparedRequest
from baton_router.requests.request_text import RequestText
from baton_router.requests.resumption import ReceivedTokens, already_finished
from baton_router.streams.loop_turns import StreamTurns
from baton_router.text.tokenization import Tokenizer

MAX_WAITING_EVENTS: Final = 1024
"""Events per sequence that may wait for a client."""
MAX_JOINED: Final = 64
"""Waiting events that become one."""


class ClientStream:
    """A bounded buffer of one request's events.

    Args:
        turns: those of the router's loop; without them a reader is woken at once.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        tokenizer: Tokenizer,
        *,
        turns: StreamTurns | None = None,
        max_waiting_events: int = MAX_WAITING_EVENTS,
    ) -> None:
        spec = prepared.spec
        self.request = prepared
        """The request as it was prepared; its resume token may be another since."""
        self.resume_token = prepared.resume_token
        """Final once the first event can be read."""
        self._token_for = prepared.token_for
        self.text = RequestText(spec, tokenizer)
        """The text that was sent, to be read only."""
        self._received = ReceivedTokens(prepared.num_received or (0,) * spec.params.n)
        self._max_waiting = max_waiting_events * spec.params.n
        self._events: deque[GenerationEvent] = deque()
        self._held = HeldDeltas(spec.params.stream_interval or 1)
        self._error: RequestError | None = None
        self._is_complete = False
        self.num_counted_tokens = 0
        """Sent tokens that metrics have counted."""
        self.last_token_s: dict[int, float] = {}
        """Time of the last tokens of each sequence."""
        self._turns = turns or StreamTurns()
        self._reader: asyncio.Future[None] | None = None
        """Done once there is news; None while nobody waits for it."""
        self.on_news: Callable[[], None] = self._wake_reader
        """Called whenever `poll` may have something new; readers of several streams set it."""

    @property
    def spec(self) -> RequestSpec:
        return self.text.spec

    @property
    def request_id(self) -> str:
        return self.text.spec.request_id

    @property
    def has_begun_before(self) -> bool:
        """True if the client already has the beginning of the output."""
        return any(self._received.counts)

    @property
    def num_sent_tokens(self) -> int:
        """Tokens in all events there ever were."""
        return self.text.num_tokens

    def continues(self, other: ClientStream) -> bool:
        """Return whether this stream's client came with the resume token of the other."""
        return self.request.is_resumed and self.resume_token == other.resume_token

    def note_weights(self, weights: str) -> None:
        """Note the weights of the tokens that come next; those of the first ones are in the resume token."""
        if self._token_for is not None:
            self.resume_token = self._token_for(weights) or self.resume_token
            self._token_for = None

    def skip(self, received: Sequence[ReceivedSequence]) -> None:
        """Process the tokens that the client has of each sequence, before any others.

        Raises:
            InvalidRequestError: a sequence that is to continue ends in these tokens.
        """
        for index, one in enumerate(received):
            output = SequenceOutput(request_id=self.request_id, index=index, token_ids=one.token_ids)
            event, _ = self.text.push(output)
            assert event is not None, "nothing has ended before it began"
            if event.finish_reason is not None and not one.is_finished:
                raise already_finished(len(one.token_ids))
            self._received.note(event)
        self.num_counted_tokens = self.num_sent_tokens

    def push(self, output: SequenceOutput, num_cached_tokens: int | None = None) -> bool:
        """Queue new tokens; True if a stop string ends the sequence here while its worker continues.

        `num_cached_tokens` is as in `Delta`.

        Raises:
            RequestError: OVERLOADED, the client leaves too many events unread; they are dropped.
            InvalidRequestError: the client claims to have more tokens than there are.
        """
        is_stopped = False
        for part, is_received in self._received.split(output):
            event, is_stopped_here = self.text.push(part, num_cached_tokens)
            is_stopped |= is_stopped_here
            if event is not None:
                self._received.note(event)
                self._queue(msgspec.structs.replace(event, is_received=True) if is_received else event)
        return is_stopped

    def push_prompt(self, prompt_logprobs: PromptLogprobs) -> None:
        """Queue log-probabilities of the next prompt tokens.

        Raises:
            RequestError: OVERLOADED, as `push`.
        """
        event = PromptDelta(
            start=prompt_logprobs.start,
            logprobs=PackedLogprobs(prompt_logprobs.entries),
            is_received=self.has_begun_before,
        )
        self._queue(event)

    def finish(self, finished: FinishRequest) -> None:
        """Queue the last event."""
        self._release_held()
        self._append(self.text.finish(finished))
        self._is_complete = True

    def fail(self, error: RequestError) -> None:
        """End with `error`, after what waits already."""
        self._error = error
        self._release_held()
        self.on_news()

    def check_taken(self) -> None:
        """Raises RequestError: the request was refused at once."""
        if self._error is not None:
            raise self._error

    async def next_event(self) -> GenerationEvent | None:
        """Wait for the next event; None after the last.

        Raises:
            RequestError: the request failed.
        """
        while (event := self.poll()) is None and not self.is_over:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return event

    def poll(self) -> GenerationEvent | None:
        """Return the next event that is there; None while there is none.

        Tokens of one sequence that have waited for their reader come as one event.

        Raises:
            RequestError: the request failed.
        """
        if self._events:
            event = self._events.popleft()
            return self._joined(event) if self._events and isinstance(event, Delta) else event
        if self._error is not None:
            raise self._error
        return None

    @property
    def is_over(self) -> bool:
        """True once the last event has been read."""
        return self._is_complete and not self._events

    def _joined(self, first: Delta) -> Delta:
        parts, events, num_logprobs = [first], self._events, first.num_logprobs
        while events and parts[-1].finish_reason is None and len(parts) < MAX_JOINED:
            event = events[0]
            if not isinstance(event, Delta) or not event.follows(first):
                break
            if (num_logprobs := num_logprobs + event.num_logprobs) > MAX_JOINED_LOGPROBS:
                break
            parts.append(event)
            events.popleft()
        return join(parts) if len(parts) > 1 else first

    def _wake_reader(self) -> None:
        if (reader := self._reader) is not None:
            self._reader = None
            self._turns.wake(reader)

    def _queue(self, event: GenerationEvent) -> None:
        if isinstance(event, Delta):
            if (due := self._held.add(event)) is None:
                return
            event = due
        if len(self._events) >= self._max_waiting:
            self._events.clear()
            self._held.release()
            text = f"the client reads too slowly: {self._max_waiting} events wait for it, the maximum"
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._append(event)

    def _release_held(self) -> None:
        for delta in self._held.release():
            self._append(delta)

    def _append(self, event: GenerationEvent) -> None:
        self._events.append(event)
        self.on_news()
