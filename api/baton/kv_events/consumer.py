"""Follows what one worker publishes of its cache: ours, or one of vLLM's.

Runs on the caller's loop. What `EventStream` finds missing is asked of the replay socket, and so is, now and
then, whether a silent worker has published anything. Every wait has a limit.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from baton_core.kv_events.encoding import KVEventBatch, decode_batch
from baton_core.kv_events.event_stream import EventStream, FollowedChange
from baton_kv.curve import use_server_key

MAX_BATCH_BYTES: Final = 64 * 2**20
_MAX_QUEUED: Final = 100_000
_NUMBER_BYTES: Final = 8
_log = logging.getLogger(__name__)
_Take = Callable[[int, KVEventBatch], list[FollowedChange]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerTimings:
    idle_s: float = 2.0
    """Silence after which the replay socket is asked."""
    answer_s: float = 2.0
    """Limit of the wait for each answer of the replay socket."""


class KVEventFollower:
    """Follows the worker that publishes at `endpoint`; encrypted if its public key is given."""

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        first: int = 0,
        timings: FollowerTimings | None = None,
        server_key: bytes | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._topic = topic.encode()
        self._timings = timings or FollowerTimings()
        self._stream = EventStream(first)
        self._server_key = server_key

    async def changes(self) -> AsyncGenerator[FollowedChange, None]:
        """Every change, in order, until the caller leaves; a snapshot where some could not be had.

        Raises:
            zmq.ZMQError: an endpoint is no address.
        """
        context = zmq.asyncio.Context()
        try:
            live = self._socket(context, zmq.SUB, self._endpoint)
            live.setsockopt(zmq.SUBSCRIBE, self._topic)
            while True:
                if self._stream.wants_replay or not await live.poll(int(self._timings.idle_s * 1000)):
                    async with aclosing(self._replay(context)) as replayed:
                        async for change in replayed:
                            yield change
                    continue
                for change in _read(self._stream, await live.recv_multipart(), self._stream.on_live):
                    yield change
        finally:
            context.destroy(linger=0)

    async def _replay(self, context: zmq.asyncio.Context) -> AsyncGenerator[FollowedChange, None]:
        first = self._stream.begin_replay()
        is_complete = False
        if self._replay_endpoint is not None:
            async with aclosing(self._answers(context, self._replay_endpoint, first)) as answers:
                async for frames in answers:
                    is_complete = not frames[-1]
                    if not is_complete:
                        for change in _read(self._stream, frames, self._stream.on_replayed):
                            yield change
        for change in self._stream.end_replay(is_complete=is_complete):
            yield change

    async def _answers(
        self, context: zmq.asyncio.Context, endpoint: str, first: int
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield messages up to and including the end marker; ends early when none comes in time."""
        socket = self._socket(context, zmq.DEALER, endpoint)
        try:
            await socket.send_multipart((b"", first.to_bytes(_NUMBER_BYTES, "big")))
            while await socket.poll(int(self._timings.answer_s * 1000)):
                frames = await socket.recv_multipart()
                yield frames
                if not frames[-1]:
                    return
            _log.warning("%s does not answer within %g s", endpoint, self._timings.answer_s)
        finally:
            socket.close()

    def _socket(self, context: zmq.asyncio.Context, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, "[" in endpoint)
        socket.setsockopt(zmq.RCVHWM, _MAX_QUEUED)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        if self._server_key is not None:
            use_server_key(socket, self._server_key)
        socket.connect(endpoint)
        return socket


def _read(stream: EventStream, frames: list[bytes], take: _Take) -> list[FollowedChange]:
    """Read a message that ends with sequence number and payload; what cannot be read counts as lost."""
    if len(frames) < 2 or len(frames[-2]) != _NUMBER_BYTES:
        _log.warning("dropped a message that is no KV event: it has no number")
        return []
    sequence = int.from_bytes(frames[-2], "big")
    try:
        batch = decode_batch(frames[-1])
    except msgspec.MsgspecError as error:
        _log.warning("KV event batch %d cannot be read: %.200r", sequence, error)
        stream.skip(sequence)
        return []
    return take(sequence, batch)
