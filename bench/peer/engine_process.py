"""Processes of one engine: started, asked, paused while another engine computes, measured and ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from bench.processes import ROOT, descendants, kilobytes

END_WITHIN_S: Final = 30.0
NUM_LAST_LINES: Final = 25


class EngineFailedError(Exception):
    """An engine failed a command; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of the processes of an engine."""

    peak_bytes: int
    """Peak of resident memory, summed over processes: shared pages count in each of them."""
    shared_once_bytes: int
    """Now, with each page divided among the processes that have it."""


class EngineProcess:
    """A command, and all that it starts; leaving it ends them, and so does the end of this process."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str], fd: int = -1
    ) -> None:
        """`fd` is one that the command inherits, or -1."""
        self.name = name
        self._log = log
        self.started_s = time.monotonic()
        self._guardian = subprocess.Popen(
            [sys.executable, "-m", "bench.peer.guardian", str(log), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            pass_fds=() if fd < 0 else (fd,),
            cwd=ROOT,
        )
        assert self._guardian.stdout is not None
        self._guardian.stdout.readline()  # the command runs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started_s

    def check_alive(self) -> None:
        """Raises: EngineFailedError: the command has ended."""
        if (code := self._guardian.poll()) is not None:
            raise self.failure(f"ended with exit code {code}")

    def failure(self, text: str) -> EngineFailedError:
        """Make an error of what happened, with the end of the log."""
        lines = self._log.read_text(errors="replace").splitlines()[-NUM_LAST_LINES:]
        return EngineFailedError("\n  ".join([f"{self.name} {text}; the end of {self._log}:", *lines]))

    def pause(self) -> None:
        """Stop it where it is: an engine that waits takes no time from the one that computes."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Signal all of its processes, of whatever group."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def memory(self) -> Memory:
        peak = shared_once = 0
        for pid in self.pids:
            with suppress(FileNotFoundError, ProcessLookupError, KeyError):
                peak += kilobytes(pid, "status")["VmHWM"]
                shared_once += kilobytes(pid, "smaps_rollup")["Pss"]
        return Memory(peak_bytes=peak * 1024, shared_once_bytes=shared_once * 1024)

    @property
    def pids(self) -> list[int]:
        """Its processes: that of the command, then those that this one has started."""
        return descendants(self._guardian.pid)

    def process_bytes(self) -> list[int]:
        """Return the memory of each process, largest first; shared pages are divided among their owners."""
        sizes = []
        for pid in self.pids:
            with suppress(FileNotFoundError, ProcessLookupError, KeyError):
                sizes.append(kilobytes(pid, "smaps_rollup")["Pss"] * 1024)
        return sorted(sizes, reverse=True)

    def close(self) -> None:
        """End all of it; kill what takes too long."""
        assert self._guardian.stdin is not None
        assert self._guardian.stdout is not None
        self.resume()
        with suppress(BrokenPipeError):
            self._guardian.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._guardian.wait(END_WITHIN_S)
        if self._guardian.poll() is None:
            for pid in self.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._guardian.kill()
            self._guardian.wait()
        self._guardian.stdout.close()


class OfflineEngine(EngineProcess):
    """A process of `bench.peer.offline_engine`, in the environment of its engine."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [*command, "--control-fd", str(theirs.fileno())]
            super().__init__(name, command, log=log, environment=environment, fd=theirs.fileno())
        self._lines = self._control.makefile("rb")

    def wait_until_ready(self, within_s: float) -> None:
        """Raises: EngineFailedError: its model is not loaded in time."""
        self._read(within_s)

    def ask(self, command: Mapping[str, Any], within_s: float) -> Any:
        """Have it run prompts; see `offline_engine.Engine.run`.

        Raises:
            EngineFailedError: it ended, or did not answer in time.
        """
        with suppress(BrokenPipeError):
            self._control.sendall(json.dumps(command).encode() + b"\n")
        return self._read(within_s)

    def close(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self._lines.close()
        self._control.close()
        super().close()

    def _read(self, within_s: float) -> Any:
        self._control.settimeout(within_s)
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise self.failure(f"did not answer within {within_s:g} s") from None
        if not line:
            raise self.failure("ended")
        return json.loads(line)
