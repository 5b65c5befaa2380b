"""The start of the ranks that follow a group's leader: a process to watch, and a channel to it."""

from __future__ import annotations

import os
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Self

from baton_engine.device import require_gpus
from baton_engine.engine_settings import EngineSettings
from baton_service.process import module_command
from baton_worker.ranks.executor_settings import LOOPBACK, ExecutorSettings, environment_of_gpu, visible_gpus
from baton_worker.ranks.rank_channel import RankChannel

_STOPPED: Final = ("T", "t", "Z", "X")
"""States of a process, as proc(5) has them, in which it computes nothing."""


class StartedRank(ABC):
    """One started rank."""

    def __init__(self, rank: int, channel: RankChannel) -> None:
        self.rank = rank
        self.channel = channel

    @property
    def is_stopped(self) -> bool:
        """True if its process is known to compute nothing."""
        return False

    @abstractmethod
    def kill(self) -> None:
        """End it at once; does nothing where it has ended."""

    @abstractmethod
    def has_ended(self, within_s: float) -> bool:
        """Wait for its end; False where it has not come within this time."""

    @abstractmethod
    def why_ended(self) -> str:
        """Return how it ended, now that its channel is closed."""


class RankStarter(ABC):
    """Starts the ranks of a group but its leader, which is this process.

    A class of one's own is an executor too, named by `distributed_executor_backend`.
    """

    shares_memory: ClassVar[bool] = False
    """True if all ranks run on this machine, and descriptors travel over their channels."""
    host: str = LOOPBACK
    """Address of this machine at which the other ranks reach it; known once they are started."""
    num_on_host: int = 1
    """Ranks on this machine, the leader among them; known once they are started."""
    device_index: int = 0
    """The leader's GPU, if ranks compute on some, among those that its process sees; known like these."""

    @classmethod
    def of(cls, executor: ExecutorSettings, settings: EngineSettings) -> Self:
        """Return the one of a worker with these settings."""
        return cls()

    @abstractmethod
    def start(self, ranks: Sequence[int]) -> list[StartedRank]:
        """Start these ranks; they wait for a `StartFrame`, and see the GPU that they compute on alone.

        They are given in the order in which machines take them, the leader being the first of all.

        Raises:
            BatonError: they cannot be started in time.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the ranks were started with, once they have ended."""


class LocalRanks(RankStarter):
    """Starts ranks as processes of this machine, with a socket pair to each."""

    shares_memory = True

    @classmethod
    def of(cls, executor: ExecutorSettings, settings: EngineSettings) -> Self:
        """Return the one of a worker with these settings.

        Raises:
            InvalidConfigError: there are fewer GPUs than ranks.
        """
        require_gpus(settings.device, settings.parallel.num_ranks)
        return cls()

    def start(self, ranks: Sequence[int]) -> list[StartedRank]:
        self.num_on_host = 1 + len(ranks)
        return [_start(rank, self.gpu_of(number)) for number, rank in enumerate(ranks, 1)]

    def gpu_of(self, number: int) -> int:
        """Return the GPU of the machine's rank with this number, counted from the leader's."""
        return number

    def close(self) -> None:
        """Do nothing: a process leaves nothing behind."""


class _LocalRank(StartedRank):
    """A rank that is a child of this process."""

    def __init__(self, rank: int, channel: RankChannel, process: subprocess.Popen[bytes]) -> None:
        super().__init__(rank, channel)
        self._process = process

    @property
    def is_stopped(self) -> bool:
        return _state_of(self._process.pid) in _STOPPED

    def kill(self) -> None:
        self._process.kill()

    def has_ended(self, within_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
            return True
        return False

    def why_ended(self) -> str:
        if not self.has_ended(1.0):
            return "its process has closed the channel"
        code = self._process.returncode
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with {code}"


def _start(rank: int, gpu: int) -> StartedRank:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [
                *module_command("baton_worker.rank_process"),
                *("--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment_of_gpu(gpu, visible_gpus()),
        )
    return _LocalRank(rank, RankChannel(ours), process)


def _state_of(pid: int) -> str:
    """Return the state of a process as proc(5) has it; X where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]
