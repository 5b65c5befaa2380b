"""A cluster whose processes are started, killed, frozen and attacked, and what memory they take."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from baton.config.engine_args import BUNDLED_MODEL
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.router_access import RouterAccess
from bench.chaos.clients import WITHOUT_KEY
from bench.processes import LOCALHOST, descendants, free_port, kilobytes

READY_WITHIN_S: Final = 120.0


@dataclass(slots=True)
class Part:
    """A process that is started again under the same name each time it was killed."""

    name: str
    kind: str
    """Parts of one kind can stand in for each other."""
    command: Sequence[str]
    log: Path
    num_kills: int = 0
    num_freezes: int = 0
    is_disturbed: bool = False
    """Killed and not yet started, or frozen."""
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.log.parent
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def start_number(self) -> int:
        """The number of the part's current run."""
        return self.num_kills

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send(self, signal_number: int) -> None:
        assert self._process is not None
        self._process.send_signal(signal_number)

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def memory_mib(self) -> float:
        """Memory that it and its children have for themselves: neither files nor blocks that are shared."""
        size = 0
        for pid in (self.pid, *descendants(self.pid)):
            with suppress(FileNotFoundError, ProcessLookupError, KeyError):
                size += kilobytes(pid, "status")["RssAnon"]
        return size / 1024


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two routers, two prefill and two decode workers, and a Redis."""

    routers: tuple[Part, ...]
    workers: tuple[Part, ...]
    redis: Part
    addresses: tuple[str, ...]
    """The routers' gRPC addresses, in their order."""
    http_addresses: tuple[str, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.redis, *self.routers, *self.workers)

    async def watch(self) -> None:
        """Look after the parts until cancelled.

        Raises:
            RuntimeError: a part has ended by itself.
        """
        while True:
            for part in self.parts:
                if not part.is_disturbed and not part.is_running:
                    raise RuntimeError(f"{part.name} ended by itself; see {part.log}")
            await asyncio.sleep(1.0)

    def stop(self) -> None:
        for part in self.parts:
            part.kill()


async def kill(part: Part, down_s: float) -> None:
    """Kill -9, and start it again after `down_s`."""
    part.is_disturbed = True
    part.num_kills += 1
    part.kill()
    await asyncio.sleep(down_s)
    part.start()
    part.is_disturbed = False


async def freeze(part: Part, frozen_s: float) -> None:
    """Stop it and continue it after `frozen_s`."""
    part.is_disturbed = True
    part.num_freezes += 1
    part.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(frozen_s)
    finally:
        part.send(signal.SIGCONT)
    part.is_disturbed = False


@contextmanager
def running_cluster(
    logs: Path | None = None,
    keys: Sequence[str] = (),
    router_flags: Sequence[str] = (),
    decode_flags: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Start a cluster of the bundled model, batch-invariant in float32, which ends with the block.

    Args:
        logs: the folder of the logs of all parts; None is a temporary one.
        keys: the keys that routers take; workers show the first.

    Raises:
        SystemExit: redis-server is not installed.
    """
    redis_server = shutil.which("redis-server")
    if redis_server is None:
        sys.exit("redis-server is not installed")
    with tempfile.TemporaryDirectory() as temporary:
        folder = logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cluster = _make_cluster(folder, redis_server, keys, router_flags, decode_flags)
        try:
            for part in cluster.parts:
                part.start()
            yield cluster
        finally:
            cluster.stop()


def _make_cluster(
    folder: Path,
    redis_server: str,
    keys: Sequence[str],
    router_flags: Sequence[str],
    decode_flags: Sequence[str],
) -> Cluster:
    """Name the parts and their commands; nothing is started yet."""
    baton = (sys.executable, "-m", "baton")
    redis_port, ports, http_ports = free_port(), (free_port(), free_port()), (free_port(), free_port())
    addresses = tuple(f"{LOCALHOST}:{port}" for port in ports)
    redis = Part(
        "redis",
        "redis",
        (redis_server, "--port", str(redis_port), "--bind", LOCALHOST, "--save", "", "--appendonly", "no"),
        folder / "redis.log",
    )
    shared = ("--redis", f"redis://127.0.0.1:{redis_port}", "--redis-namespace", f"chaos-{os.getpid()}")
    named = ("--served-model-name", "model", *shared, "--resume-secret", "chaos", *router_flags)
    guarded = tuple(word for key in keys for word in ("--api-key", key))
    routers = tuple(
        Part(
            f"router-{i}",
            "router",
            (
                *baton,
                "router",
                BUNDLED_MODEL,
                *named,
                *guarded,
                "--port",
                str(http_port),
                "--grpc-port",
                str(port),
            ),
            folder / f"router-{i}.log",
        )
        for i, (port, http_port) in enumerate(zip(ports, http_ports, strict=True))
    )
    numeric = ("--dtype", "float32", "--batch-invariant", "--kv-cache-memory-bytes", str(2**28))
    reached = tuple(word for address in addresses for word in ("--router", address))
    workers = tuple(
        Part(
            f"{role}-{i}",
            role,
            (
                *(*baton, f"{role}-worker", BUNDLED_MODEL, *numeric, *shared, *reached, *guarded[:2]),
                *("--worker-id", f"{role}-{i}", *(decode_flags if role == "decode" else ())),
            ),
            folder / f"{role}-{i}.log",
        )
        for role in ("prefill", "decode")
        for i in range(2)
    )
    http_addresses = tuple(f"{LOCALHOST}:{port}" for port in http_ports)
    return Cluster(routers, workers, redis, addresses, http_addresses)


async def workers_of(address: str, access: RouterAccess) -> Sequence[pb.ModelInfo.Worker]:
    """A router's workers as it reports them; empty while it does not answer."""
    async with access.open_async_channel(address) as channel:
        try:
            info = await BatonStub(channel).GetModelInfo(
                pb.GetModelInfoRequest(), timeout=2.0, metadata=access.metadata
            )
        except grpc.aio.AioRpcError:
            return ()
        return list(info.workers)


async def wait_until_idle(cluster: Cluster, access: RouterAccess = WITHOUT_KEY) -> None:
    """Wait until every router has every worker, and none has a request or lacks a block.

    Raises:
        TimeoutError: one is not idle in time; the message has the last states.
    """
    deadline_s = time.monotonic() + READY_WITHIN_S
    while True:
        seen = [await workers_of(address, access) for address in cluster.addresses]
        if all(
            len(workers) == len(cluster.workers)
            and all(
                (w.num_running, w.num_waiting, w.num_available_blocks) == (0, 0, w.num_blocks)
                for w in workers
            )
            for workers in seen
        ):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"not every worker is idle with all its blocks within {READY_WITHIN_S:g} s: {seen}"
            )
        await asyncio.sleep(0.2)
