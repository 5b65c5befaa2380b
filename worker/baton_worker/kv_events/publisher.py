"""Publishes what changes in a worker's cache, as vLLM's ZMQ publisher does.

The caller encodes and never waits; one thread owns the sockets that followers see. A subscriber that does not
keep up misses batches, and asks the replay socket for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from itertools import count
from typing import Final

import zmq

from baton_core.errors import InvalidConfigError
from baton_core.kv_events.encoding import KVEventBatch, encode_batch
from baton_core.kv_events.events import AllBlocksCleared, KVEvent
from baton_core.worker.worker_events import CacheChanged
from baton_kv.curve import protect, read_keys
from baton_worker.kv_events.kv_events_config import FIELD, KVEventsConfig

END_OF_REPLAY: Final = (-1).to_bytes(8, "big", signed=True)
_CLOSE_WITHIN_S: Final = 1.0
_INBOX: Final = "inproc://kv-events"
_HANDSHAKE_MS: Final = 5_000
"""Within which a connection has to show that it speaks the protocol, or it is hung up on."""
_MAX_REQUEST_BYTES: Final = 1024
_log = logging.getLogger(__name__)


class KVEventPublisher:
    """The publisher of one worker; its first batch clears what an earlier epoch has published.

    Raises:
        InvalidConfigError: an endpoint cannot be bound, or the file of keys cannot be used.
    """

    def __init__(self, config: KVEventsConfig, epoch: int, data_parallel_rank: int = 0) -> None:
        self._epoch = epoch
        self._data_parallel_rank = data_parallel_rank
        self._numbers = count()
        self._is_behind = False
        self._context = zmq.Context()
        try:
            self._inbox = self._socket(zmq.PUSH, config.max_queue_size)
            self._inbox.bind(_INBOX)
            self._thread = _PublishingThread(self._context, config)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread.start()
        self.clear()

    def on_changed(self, changed: CacheChanged) -> None:
        """Publish a change; one that finds the queue full is lost, which followers see by the numbers."""
        self._publish(changed.events)

    def clear(self) -> None:
        """Publish that nothing is cached any more."""
        self._publish((AllBlocksCleared(epoch=self._epoch),))

    def close(self) -> None:
        """Publish what waits and stop; blocks the caller for at most two seconds."""
        self._inbox.setsockopt(zmq.SNDTIMEO, int(_CLOSE_WITHIN_S * 1000))
        try:
            self._inbox.send(b"")
        except zmq.Again:
            _log.warning("KV events are lost: the publisher does not keep up")
        self._thread.join(_CLOSE_WITHIN_S)
        self._context.destroy(linger=0)

    def _publish(self, events: tuple[KVEvent, ...]) -> None:
        number = next(self._numbers).to_bytes(8, "big")
        payload = encode_batch(
            KVEventBatch(ts=time.time(), events=events, data_parallel_rank=self._data_parallel_rank)
        )
        try:
            self._inbox.send_multipart((number, payload), zmq.NOBLOCK)
        except zmq.Again:
            if not self._is_behind:
                _log.warning("KV events are lost: more than max_queue_size batches wait to be published")
            self._is_behind = True
        else:
            self._is_behind = False

    def _socket(self, kind: int, max_queued: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, max_queued)
        return socket


class _PublishingThread(threading.Thread):
    """Binds when made; sends from the inbox to subscribers, and again to those who ask."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: KVEventsConfig) -> None:
        super().__init__(name="kv-events", daemon=True)
        keys = config.curve_keyfile and read_keys(f"curve_keyfile of {FIELD}", config.curve_keyfile)
        self._topic = config.topic.encode()
        self._recent: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._inbox = context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.RCVHWM, 1)
        self._inbox.connect(_INBOX)
        self._pub = context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.SNDHWM, config.hwm)
        protect(self._pub, keys or None)
        _attach(self._pub, "endpoint", config.endpoint, is_bound=_is_bound(config.endpoint))
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._replay = context.socket(zmq.ROUTER)
        self._replay.setsockopt(zmq.SNDHWM, config.buffer_steps + 1)
        self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._replay.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)
        protect(self._replay, keys or None)
        if config.replay_endpoint is not None:
            _attach(self._replay, "replay_endpoint", config.replay_endpoint, is_bound=True)
            self._poller.register(self._replay, zmq.POLLIN)

    def run(self) -> None:
        while True:
            ready = [socket for socket, _ in self._poller.poll()]
            if self._inbox in ready:
                frames = self._inbox.recv_multipart()
                if len(frames) == 1:
                    return
                self._recent.append((frames[0], frames[1]))
                self._pub.send_multipart((self._topic, *frames))
            if self._replay in ready:
                self._answer(self._replay.recv_multipart())

    def _answer(self, frames: list[bytes]) -> None:
        """Send again what is asked for, and that this is all; one that does not read it gets no more."""
        *envelope, asked = frames
        if len(asked) != 8:
            _log.warning("a replay was asked from %r; allowed: a number of 8 bytes", asked[:16])
            return
        try:
            for number, payload in self._recent:
                if number >= asked:
                    self._replay.send_multipart((*envelope, number, payload), zmq.NOBLOCK)
            self._replay.send_multipart((*envelope, END_OF_REPLAY, b""), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _log.warning("a replay was given up: %s", error)


def _is_bound(endpoint: str) -> bool:
    return not endpoint.startswith("tcp://") or "*" in endpoint or "::" in endpoint


def _attach(socket: zmq.Socket[bytes], name: str, endpoint: str, *, is_bound: bool) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    try:
        (socket.bind if is_bound else socket.connect)(endpoint)
    except zmq.ZMQError as error:
        what = "bound" if is_bound else "connected to"
        raise InvalidConfigError(
            f"{FIELD} has {name}: {endpoint!r}, which cannot be {what} ({error.strerror}); "
            "allowed: an address of this machine that is not in use"
        ) from None
