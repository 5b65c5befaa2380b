"""The other ranks of a group, as its leader starts, tells and watches them.

A rank that dies or freezes takes the whole group with it: what the others compute is worth nothing without
its part. Whoever runs the leader starts a new group.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import torch

from baton_core.errors import BatonError, ErrorCode, InvalidConfigError, InvalidModelError, RequestError
from baton_core.ranks.rank_layout import RankPlace
from baton_core.worker.step_plan import StepPlan
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.device import resolve_device
from baton_engine.loading import EngineSettings
from baton_engine.models.divisible import require_divisible
from baton_engine.models.registry import read_model_config
from baton_engine.ranks.ranks import Ranks
from baton_kernels.interface.collectives import RankLostError
from baton_worker.ranks.links import Links
from baton_worker.ranks.rank_channel import (
    AliveFrame,
    AnswerFrame,
    CallFrame,
    FailedFrame,
    PoolFrame,
    RankChannel,
    StartFrame,
    StepFrame,
    StopFrame,
    encode_frame,
)

SILENT_S: Final = 1.0
"""Silence after which a rank is looked at: one whose process is stopped is lost."""
LOST_AFTER_S: Final = 10.0
"""Silence after which a rank is lost, whatever its process looks like."""
LOADS_WITHIN_S: Final = 600.0
"""Silence that is taken while the model is loaded: imports and reads may hold the interpreter."""
_ANSWER_WITHIN_S: Final = 600.0
_STOP_WITHIN_S: Final = 5.0
_WATCH_EVERY_S: Final = 0.2
_OF_SETTINGS: Final[dict[str, type[BatonError]]] = {
    ErrorCode.INVALID_MODEL: InvalidModelError,
    ErrorCode.INVALID_CONFIG: InvalidConfigError,
}
"""Errors that the leader would meet too."""
_STOPPED: Final = ("T", "t", "Z", "X")
"""States of a process, as proc(5) has them, in which it computes nothing."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _Follower:
    """A rank's process, and what it has said."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: RankChannel
    answers: SimpleQueue[AnswerFrame | None] = field(default_factory=SimpleQueue)
    """None once it is lost."""
    seen_s: float = field(default_factory=time.monotonic)


class RankGroup:
    """Starts a process for every rank but the leader's, which is this one.

    They load the model while the leader loads its part.

    Raises:
        InvalidModelError: the model cannot be found or read.
        InvalidConfigError: it cannot be divided so.
    """

    def __init__(self, settings: EngineSettings) -> None:
        sizes = settings.parallel
        config = read_model_config(
            resolve_model(settings.model), settings.kv_cache.max_model_len, settings.config_overrides
        )
        require_divisible(config, sizes)
        _require_cpu(settings)
        self._place = RankPlace(sizes=sizes, rank=sizes.leader)
        self._links = Links(sizes, settings.cpu_kernels)
        self.lost: Future[None] = Future()
        """Fails with a BatonError when a rank is lost; whatever is computed meanwhile fails too."""
        self._is_closing = False
        self._silence_s = LOADS_WITHIN_S
        self._num_threads = max(1, torch.get_num_threads() // sizes.num_ranks)
        torch.set_num_threads(self._num_threads)
        self._followers = [_start(rank) for rank in range(sizes.num_ranks) if rank != self._place.rank]
        port = self._links.port
        for one in self._followers:
            start = StartFrame(rank=one.rank, settings=settings, num_threads=self._num_threads, port=port)
            one.channel.send_with(self._links.descriptor, start)
        self._links.close_descriptor()
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    def link(self) -> Ranks:
        """Link this rank to the others."""
        return self._links.open(self._place, self._announce)

    def on_loaded(self) -> None:
        """Expect every rank to answer soon from now on: the model is loaded."""
        now = time.monotonic()
        for one in self._followers:
            one.seen_s = now
        self._silence_s = LOST_AFTER_S

    def lend(self, descriptor: int) -> None:
        """Let every other rank map the KV pool, which lies in the memory of this descriptor."""
        for one in self._followers:
            one.channel.send_with(descriptor, PoolFrame())

    def call(self, action: str, argument_json: str) -> Callable[[], list[Any]]:
        """Have every other rank do what an operator asks; what is returned waits for their answers, by rank.

        An answer is a value, or the error that the rank raised.

        Raises:
            BatonError: a rank is lost.
        """
        self._tell(encode_frame(CallFrame(action=action, argument_json=argument_json)))
        return self._answers

    def in_order(self, own: T, others: list[T]) -> list[T]:
        """Return what the leader has and what the others have, by rank."""
        return [*others[: self._place.rank], own, *others[self._place.rank :]]

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Tell the end of an exchange by the reason why the rank was lost.

        Raises:
            BatonError: a rank is lost.
        """
        try:
            yield
        except RankLostError as error:
            with suppress(TimeoutError):
                self.lost.result(LOST_AFTER_S)
            self.end(str(error))
            self.lost.result()

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Lead a step: if this rank fails within it, the others have gone on without it, and the group ends.

        Raises:
            BatonError: a rank is lost.
        """
        try:
            with self.explaining():
                yield
        except BaseException as error:
            self.end(f"the leader of the model's ranks failed: {type(error).__name__}: {error}")
            raise

    def end(self, reason: str, error: BatonError | None = None) -> None:
        """End the group: nobody waits for a rank any more. Does nothing once it has ended."""
        if self.lost.done():
            return
        error = error or RequestError(ErrorCode.UNAVAILABLE, reason)
        _log.error("%s", error)
        self._links.abort()
        for one in self._followers:
            one.process.kill()
        with suppress(InvalidStateError):
            self.lost.set_exception(error)
        for one in self._followers:
            one.answers.put(None)

    def close(self) -> None:
        """End all ranks; those that do not end are killed."""
        self._is_closing = True
        for one in self._followers:
            with suppress(OSError):
                one.channel.send(StopFrame())
        for one in self._followers:
            try:
                one.process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        self._watcher.join()
        for one in self._followers:
            one.channel.close()

    def _announce(self, plan: StepPlan) -> None:
        self._tell(encode_frame(StepFrame.of(plan)))

    def _tell(self, content: bytes) -> None:
        if self.lost.done():
            self.lost.result()
        for one in self._followers:
            try:
                one.channel.send_encoded(content)
            except OSError:
                self._lose(one, "its process is gone")
                self.lost.result()

    def _answers(self) -> list[Any]:
        """Wait for one answer of each: a value, or the error that it raised."""
        answers: list[Any] = []
        for one in self._followers:
            answer = None
            try:
                answer = one.answers.get(timeout=_ANSWER_WITHIN_S)
            except Empty:
                self._lose(one, f"it has not answered within {_ANSWER_WITHIN_S:g} s")
            if answer is None:
                self.lost.result()
            elif answer.code:
                answers.append(error_of(answer.code, answer.message))
            else:
                answers.append(json.loads(answer.result_json))
        return answers

    # --- on the watching thread ---

    def _watch(self) -> None:
        left = {one.channel.fileno(): one for one in self._followers}
        while left and not self.lost.done():
            ready, _, _ = select.select(list(left), [], [], _WATCH_EVERY_S)
            for descriptor in ready:
                if not self._receive(left[descriptor]):
                    one = left.pop(descriptor)
                    if not self._is_closing:
                        self._lose(one, _end_of(one.process))
            if not self._is_closing:
                self._look_for_silence()

    def _receive(self, one: _Follower) -> bool:
        """Take a frame; False where no more will come."""
        frame = one.channel.receive_at_leader()
        one.seen_s = time.monotonic()
        match frame:
            case AliveFrame():
                return True
            case AnswerFrame():
                one.answers.put(frame)
                return True
            case FailedFrame(code=code, message=message):
                if code in _OF_SETTINGS:
                    self._lose(one, message, error_of(code, message))
                else:
                    self._lose(one, f"it failed: {message}")
        return False

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        for one in self._followers:
            silent_s = now - one.seen_s
            if silent_s > SILENT_S and _state_of(one.process.pid) in _STOPPED:
                self._lose(one, f"its process is stopped, and silent for {silent_s:.1f} s")
            elif silent_s > self._silence_s:
                self._lose(one, f"it is silent for {silent_s:.1f} s")

    def _lose(self, lost: _Follower, reason: str, error: BatonError | None = None) -> None:
        self.end(f"rank {lost.rank} of the model's ranks is lost: {reason}", error)


def error_of(code: str, message: str) -> BatonError:
    """Return the error that another rank has raised."""
    kind = _OF_SETTINGS.get(code)
    return kind(message) if kind else RequestError(ErrorCode(code), message)


def _require_cpu(settings: EngineSettings) -> None:
    """Refuse ranks on GPUs.

    Raises:
        InvalidConfigError: naming the device.
    """
    if resolve_device(settings.device).type != "cpu":
        text = f"device is {settings.device!r}, with {settings.parallel.num_ranks} ranks for a model"
        raise InvalidConfigError(f"{text}; allowed: cpu (ranks on GPUs are not supported yet)")


def _start(rank: int) -> _Follower:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "baton_worker.rank_process", "--control-fd", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return _Follower(rank=rank, process=process, channel=RankChannel(ours))


def _end_of(process: subprocess.Popen[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(1.0)
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with {code}"
    return "its process has closed the channel"


def _state_of(pid: int) -> str:
    """Return the state of a process as proc(5) has it; empty where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]
