"""Baton's commands as real child processes: started, watched, ended, and what they leave behind."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_core.sessions.session import DEFAULT_TIMINGS
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.router_access import RouterAccess

BATON: Final = (sys.executable, "-m", "baton")
SERVE: Final = (*BATON, "serve")
KV_CACHE_BYTES: Final = 64 * 2**20
SMALL: Final = ("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--split", "always")
ONE_MIXED: Final = ("--prefill-workers", "0", "--decode-workers", "0", "--mixed", "1")
_NUM_WORKERS: Final = {"--prefill-workers": 1, "--decode-workers": 1, "--mixed": 0}
"""Flags of `baton serve` that ask for workers, with their defaults."""
PATIENT: Final = ("--session-timeout", "10")
BRISK: Final = ("--session-timeout", "3")
"""How soon a silent worker is given up."""
NO_GRAMMARS: Final = ("--structured-outputs-backend", "guidance")
"""A worker starts with a quarter less work than with xgrammar, which imports Transformers."""
FLOAT32: Final = ("--dtype", "float32")
"""In bfloat16 the shape of a batch decides between tokens that are almost as likely."""
READY_WITHIN_S: Final = 90.0
STOP_WITHIN_S: Final = 60.0
IDLE_WITHIN_S: Final = 30.0
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Ask again and again until `condition` holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running `baton serve` and a client of it."""

    process: subprocess.Popen[bytes]
    address: str
    """Host and port of gRPC."""
    http_address: str
    log: Path
    channel: grpc.Channel
    num_workers: int
    """How many workers its flags ask for."""

    @property
    def stub(self) -> BatonStub:
        return BatonStub(self.channel)

    def info(self) -> pb.ModelInfo:
        return self.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=30.0)

    def wait_until_ready(self) -> None:
        """Wait until a prompt can be served, and every worker has registered."""
        self.wait_until_serving()
        until(self._is_complete, READY_WITHIN_S, f"{self.num_workers} workers")

    def wait_until_serving(self) -> None:
        """Wait until a prompt can be served: a worker of each role is enough."""
        health = health_pb2_grpc.HealthStub(self.channel)
        request = health_pb2.HealthCheckRequest()
        for reply in health.Watch(request, timeout=READY_WITHIN_S, wait_for_ready=True):
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
        raise AssertionError("the router ended the watch of its health")

    def wait_until_idle(self) -> None:
        """Wait until all workers have said that they have no request and all of their blocks."""
        until(self._stays_idle, IDLE_WITHIN_S, f"idle workers; last {self.info()}")

    def pids_of(self, title: str) -> list[int]:
        """Children with this process title, the one started first first."""
        return sorted(pid for pid, shown in children_of(self.process.pid).items() if shown == title)

    def _is_complete(self) -> bool:
        return len(self.info().workers) == self.num_workers

    def _stays_idle(self) -> bool:
        """Ask until every worker has reported anew."""
        until_s = time.monotonic() + 1.5 * DEFAULT_TIMINGS.heartbeat_s
        while self._is_idle():
            if time.monotonic() > until_s:
                return True
            time.sleep(0.02)
        return False

    def _is_idle(self) -> bool:
        workers = self.info().workers
        return len(workers) == self.num_workers and all(
            (worker.num_running, worker.num_waiting, worker.num_available_blocks) == (0, 0, worker.num_blocks)
            for worker in workers
        )


@contextmanager
def starting(
    folder: Path,
    *flags: str,
    command: Sequence[str] = SERVE,
    access: RouterAccess | None = None,
    process_group: int | None = None,
) -> Iterator[Cluster]:
    """Run `baton serve` until the block is left; its workers may still be loading. `command` is its name.

    It runs in `folder/cwd`, with `folder/tmp` for temporary files, and logs to `folder/log`. Without `access`
    the client shows the key among the flags, if there is one. With a `process_group` of 0 it has its own.
    """
    (folder / "cwd").mkdir(parents=True)
    (folder / "tmp").mkdir()
    read_fd, write_fd = os.pipe()
    ports = ("--port", "0", "--grpc-port", "0", "--report-fd", str(write_fd))
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        process = subprocess.Popen(
            (*command, *ports, *PATIENT, *flags),
            cwd=folder / "cwd",
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
            pass_fds=(write_fd,),
            stdin=subprocess.DEVNULL,
            stderr=log,
            process_group=process_group,
        )
        stack.callback(stop, process)
        os.close(write_fd)
        with os.fdopen(read_fd) as pipe:
            said = json.loads(pipe.readline())
        address = said["address"]
        key = flags[flags.index("--api-key") + 1] if "--api-key" in flags else ""
        channel = stack.enter_context((access or RouterAccess(key=key)).open_channel(address))
        num_workers = _num_workers((*command, *flags))
        yield Cluster(process, address, said["http_address"], folder / "log", channel, num_workers)


@contextmanager
def serving(
    folder: Path, *flags: str, command: Sequence[str] = SERVE, access: RouterAccess | None = None
) -> Iterator[Cluster]:
    """As `starting`, and wait until a prompt can be served and every worker has registered."""
    with starting(folder, *flags, command=command, access=access) as cluster:
        cluster.wait_until_ready()
        yield cluster


def _num_workers(command: Sequence[str]) -> int:
    """Return how many workers a command asks for; vLLM's have one engine."""
    if "as-vllm" in command:
        return 1
    given = dict(pairwise(command))
    return sum(int(given.get(flag, default)) for flag, default in _NUM_WORKERS.items())


def stop(process: subprocess.Popen[bytes]) -> int:
    """End a process that this one started; kill it, and fail, if it does not obey."""
    process.terminate()
    try:
        return process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def children_of(pid: int) -> dict[int, str]:
    """Titles of a process's children by process id."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) != pid:
                continue
            title = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        found[int(stat.parent.name)] = title
    return found


def family_of(pid: int) -> list[int]:
    """A process and all of its descendants."""
    return [pid, *(relative for child in children_of(pid) for relative in family_of(child))]


class Family:
    """Processes, known by descriptors that no later process can take over, and the sockets they have."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._stack = ExitStack()
        self._fds = {}
        self._inodes: set[str] = set()
        for pid in pids:
            try:
                self._fds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                continue  # it has ended since it was listed
            self._stack.callback(os.close, self._fds[pid])
            self._inodes |= _sockets_of(pid)

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def num_sockets(self) -> int:
        return len(self._inodes)

    def wait_until_gone(self, within_s: float) -> None:
        """Wait until every process has ended and none of their sockets listens."""
        until(lambda: not self._alive(), within_s, f"end of {list(self._fds)}")
        assert not self._inodes & _open_sockets()

    def _alive(self) -> list[int]:
        poll = select.poll()
        for fd in self._fds.values():
            poll.register(fd, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(0)}
        return [pid for pid, fd in self._fds.items() if fd not in ended]


def listening_ports(pid: int) -> list[int]:
    """TCP ports at which a process listens over IPv4."""
    sockets = _sockets_of(pid)
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in sockets and row[3] == "0A"]


def _entries(folder: Path) -> list[Path]:
    """Return what a folder of /proc holds: nothing when its process has ended."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _sockets_of(pid: int) -> set[str]:
    inodes = set()
    for fd in _entries(Path(f"/proc/{pid}/fd")):
        try:
            match = _SOCKET.fullmatch(str(fd.readlink()))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if match is not None:
            inodes.add(match[1])
    return inodes


def _open_sockets() -> set[str]:
    """Inodes of the TCP and Unix sockets of this network namespace that a process still has."""
    inodes = set()
    for name, column in (("tcp", 9), ("tcp6", 9), ("unix", 6)):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            inodes.add(line.split()[column])
    return inodes - {"0"}
