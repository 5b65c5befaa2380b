"""Speed of the first blocks from each other worker, beside the best that this machine can do.

A slow transport shows here with its name. Used on the worker's loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from baton_core.worker.worker_events import PullDone
from baton_service.tcp import connect_to, listen_at

_NUM_TRIES: Final = 5
_MAX_REMEMBERED: Final = 256
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPull:
    """From one worker; `expected` is 0 where it is not known."""

    transport: str
    bytes_per_s: float
    expected_bytes_per_s: float


class FirstPulls:
    """Logs the first copy each time that a worker's pool was opened, and remembers it by the worker's name.

    Args:
        expected: bytes per second by transport, as `measure_expected` gives them.
    """

    def __init__(self, expected: Mapping[str, float]) -> None:
        self._expected = expected
        self._transports: dict[str, str] = {}
        self._by_source: OrderedDict[str, FirstPull] = OrderedDict()

    @property
    def by_source(self) -> Mapping[str, FirstPull]:
        """By name, the first one first."""
        return self._by_source

    def begin(self, source: str, transport: str) -> None:
        """A worker's pool has been opened: its next copy is the first."""
        self._transports[source] = transport

    def note(self, source: str, outcome: PullDone) -> None:
        """A copy from that worker has ended."""
        if outcome.error or not outcome.num_bytes or outcome.seconds <= 0:
            return
        if (transport := self._transports.pop(source, None)) is None:
            return
        speed, expected = outcome.num_bytes / outcome.seconds, self._expected.get(transport, 0.0)
        self._by_source.pop(source, None)
        self._by_source[source] = FirstPull(
            transport=transport, bytes_per_s=speed, expected_bytes_per_s=expected
        )
        if len(self._by_source) > _MAX_REMEMBERED:
            self._by_source.popitem(last=False)
        best = (
            f"; this machine's best for as much as a block is {expected / 1e9:.2f} GB/s" if expected else ""
        )
        _log.info(
            "first blocks of worker %s came over %s: %.3f MiB in %.2f ms, %.2f GB/s%s",
            *(source, transport, outcome.num_bytes / 2**20, 1e3 * outcome.seconds, speed / 1e9, best),
        )


def measure_expected(num_bytes: int) -> dict[str, float]:
    """Return what this machine does with so many bytes, in bytes per second by transport.

    The best of a few: a plain copy in memory, which neither checksums nor converts, and the loopback.
    """
    return {"shared_memory": _best(num_bytes, _copy), "tcp": _best(num_bytes, _send)}


def _best(num_bytes: int, move: Callable[[bytearray, bytearray], float]) -> float:
    source, target = bytearray(num_bytes), bytearray(num_bytes)
    return num_bytes / min(move(source, target) for _ in range(_NUM_TRIES))


def _copy(source: bytearray, target: bytearray) -> float:
    began = time.perf_counter()
    target[:] = source
    return time.perf_counter() - began


def _send(source: bytearray, target: bytearray) -> float:
    """Over TCP, from the first byte sent to the last one received."""
    with listen_at("127.0.0.1", 0) as server:
        sender = connect_to(server.getsockname(), 5.0)
        receiver, _ = server.accept()
    with sender, receiver:
        receiver.settimeout(5.0)
        thread = threading.Thread(target=sender.sendall, args=(source,), name="loopback")
        began = time.perf_counter()
        thread.start()
        rest = memoryview(target)
        while rest and (count := receiver.recv_into(rest)):
            rest = rest[count:]
        ended = time.perf_counter()
        thread.join()
    return ended - began
