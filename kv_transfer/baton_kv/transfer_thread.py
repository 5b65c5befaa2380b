"""The crossing between the loop thread, which decides, and the transfer thread, which moves bytes.

The loop thread submits; results come back in batches through one callable that is handed in.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from baton_kv.connector import AbortResult, KVConnector, PullOrder, PullOutcome

MAX_BATCH: Final = 64
"""Commands taken between two steps of the connector."""
_PAUSE_S: Final = 0.1
"""After a fault that may show again at once."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The end of a `connect`; with an error the peer is not connected."""

    peer_id: str
    transport: str = ""
    """Which way its blocks take."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The end of a `seal`: one checksum per block, or none and an error."""

    tag: int
    checksums: tuple[int | None, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """The end of an `abort`. If fenced, no outcome of its order follows; one may have come before."""

    pull_id: int
    result: AbortResult


TransferResult = Connected | Sealed | PullOutcome | Aborted


@dataclass(frozen=True, slots=True)
class _Connect:
    peer_id: str
    description: bytes


@dataclass(frozen=True, slots=True)
class _Seal:
    tag: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Abort:
    pull_id: int


@dataclass(frozen=True, slots=True)
class _Disconnect:
    peer_id: str


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Submitted = _Connect | _Seal | PullOrder
_Command = _Submitted | _Abort | _Disconnect


class TransferThread:
    """Owns a connector from `start` to `close`. Its methods are for the loop thread and never block.

    Connects, seals and pulls that are not answered yet are at most `max_outstanding`: one more is refused
    with False, as is everything after `close`. Each one accepted is answered exactly once, unless `close`
    overtakes it. Aborts and disconnects always find room: there is at most one per pull or peer.

    `deliver` runs on the transfer thread and must neither block nor raise, such as
    `lambda results: loop.call_soon_threadsafe(on_results, results)`.
    """

    def __init__(
        self,
        connector: KVConnector,
        deliver: Callable[[list[TransferResult]], None],
        *,
        max_outstanding: int = 1024,
    ) -> None:
        self._connector = connector
        self._deliver = deliver
        self._room = threading.BoundedSemaphore(max_outstanding)
        self._commands: queue.SimpleQueue[_Command | _Stop] = queue.SimpleQueue()
        self._in_flight: dict[int, PullOrder] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="kv-transfer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def connect(self, peer_id: str, description: bytes) -> bool:
        """Answered by `Connected`."""
        return self._submit(_Connect(peer_id, description))

    def seal(self, tag: int, block_ids: tuple[int, ...]) -> bool:
        """Answered by `Sealed` with the same tag."""
        return self._submit(_Seal(tag, block_ids))

    def pull(self, order: PullOrder) -> bool:
        """Answered by `PullOutcome`, or by `Aborted` after an abort."""
        return self._submit(order)

    def abort(self, pull_id: int) -> None:
        """Answered by `Aborted`, whether or not the order is still in flight."""
        self._put(_Abort(pull_id))

    def disconnect(self, peer_id: str) -> None:
        """Not answered itself; pulls in flight from the peer fail."""
        self._put(_Disconnect(peer_id))

    def close(self, timeout_s: float) -> None:
        """Finish the commands before this one, drop the pulls in flight and close the connector.

        Raises:
            TimeoutError: the transfer thread is still busy after `timeout_s`.
        """
        self._is_closed = True
        self._put(_Stop())
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the transfer thread is still busy after {timeout_s} s")

    def _submit(self, command: _Submitted) -> bool:
        if self._is_closed or not self._room.acquire(blocking=False):
            return False
        self._put(command)
        return True

    def _put(self, command: _Command | _Stop) -> None:
        self._commands.put(command)
        self._connector.wake()

    def _run(self) -> None:
        is_running = True
        try:
            while is_running:
                results: list[TransferResult] = []
                is_running = self._take_commands(results)
                if is_running:
                    results.extend(self._poll())
                if results:
                    self._deliver(results)
                if is_running and self._commands.empty():
                    self._wait()
        finally:
            self._connector.close()

    def _take_commands(self, results: list[TransferResult]) -> bool:
        """Execute what is waiting; False at the end."""
        for _ in range(MAX_BATCH):
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                break
            if isinstance(command, _Stop):
                return False
            result = self._execute(command)
            if result is not None:
                results.append(result)
        return True

    def _execute(self, command: _Command) -> TransferResult | None:
        try:
            result = self._apply(command)
        except Exception as error:
            result = _failure(command, error)
        if result is not None and isinstance(command, _Submitted):
            self._room.release()
        return result

    def _apply(self, command: _Command) -> TransferResult | None:
        match command:
            case _Connect(peer_id, description):
                self._connector.connect(peer_id, description)
                return Connected(peer_id=peer_id, transport=self._connector.transport_of(peer_id))
            case _Seal(tag, block_ids):
                return Sealed(tag=tag, checksums=self._connector.seal(block_ids))
            case PullOrder():
                self._connector.pull(command)
                self._in_flight[command.pull_id] = command
                return None
            case _Abort(pull_id):
                result = self._connector.abort(pull_id)
                if result is AbortResult.FENCED:
                    self._forget(pull_id)
                return Aborted(pull_id=pull_id, result=result)
            case _Disconnect(peer_id):
                self._connector.disconnect(peer_id)
                return None
        assert_never(command)

    def _poll(self) -> list[TransferResult]:
        try:
            outcomes = self._connector.poll()
        except Exception as error:
            _log.error("the KV connector failed", exc_info=error)
            if not self._in_flight:
                time.sleep(_PAUSE_S)
            return [self._give_up(order, error) for order in list(self._in_flight.values())]
        for outcome in outcomes:
            self._forget(outcome.pull_id)
        return [*outcomes]

    def _wait(self) -> None:
        try:
            self._connector.wait()
        except Exception as error:
            _log.error("the KV connector cannot wait", exc_info=error)
            time.sleep(_PAUSE_S)

    def _give_up(self, order: PullOrder, error: Exception) -> TransferResult:
        """End an order whose connector broke down: as failed if that is safe to say, else as quarantined."""
        self._forget(order.pull_id)
        try:
            result = self._connector.abort(order.pull_id)
        except Exception:
            result = AbortResult.QUARANTINED
        if result is AbortResult.FENCED:
            return _failure(order, error)
        return Aborted(pull_id=order.pull_id, result=result)

    def _forget(self, pull_id: int) -> None:
        if self._in_flight.pop(pull_id, None) is not None:
            self._room.release()


def _failure(command: _Command, error: Exception) -> TransferResult:
    """What an unexpected error is to the one who waits for the command's result."""
    message = f"{type(error).__name__}: {error}"
    match command:
        case _Connect(peer_id) | _Disconnect(peer_id):
            return Connected(peer_id=peer_id, error=message)
        case _Seal(tag):
            return Sealed(tag=tag, checksums=(), error=message)
        case PullOrder(pull_id=pull_id, copies=copies):
            failed = tuple(copy.local_block_id for copy in copies)
            return PullOutcome(pull_id=pull_id, failed=failed, error=message, num_bytes=0, seconds=0.0)
        case _Abort(pull_id):
            return Aborted(pull_id=pull_id, result=AbortResult.QUARANTINED)
    assert_never(command)
