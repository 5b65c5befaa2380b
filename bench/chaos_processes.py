"""Processes of a cluster that are killed, frozen and started again, and what memory they take."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ANON: Final = re.compile(r"RssAnon:\s+(\d+) kB")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        """Tells one life of this part from another."""
        return self.num_kills

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
        """What it has for itself alone: neither files nor blocks that are shared."""
        assert self._process is not None
        found = _ANON.search(Path(f"/proc/{self._process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two routers, two prefill and two decode workers, and a Redis."""

    routers: tuple[Part, ...]
    workers: tuple[Part, ...]
    redis: Part
    addresses: tuple[str, ...]
    """Of the routers' gRPC, in their order."""

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
    """Stop it where it is and let it go on after `frozen_s`."""
    part.is_disturbed = True
    part.num_freezes += 1
    part.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(frozen_s)
    finally:
        part.send(signal.SIGCONT)
    part.is_disturbed = False


def make_cluster(folder: Path, model: str, redis_server: str) -> Cluster:
    """Name the parts and their commands; nothing is started yet."""
    baton = (sys.executable, "-m", "baton")
    redis_port, ports = free_port(), (free_port(), free_port())
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    redis = Part(
        "redis",
        "redis",
        (redis_server, "--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
        folder / "redis.log",
    )
    shared = ("--redis", f"redis://127.0.0.1:{redis_port}", "--redis-namespace", f"chaos-{os.getpid()}")
    named = ("--served-model-name", "model", *shared, "--resume-secret", "chaos", "--port", "0")
    routers = tuple(
        Part(
            f"router-{i}",
            "router",
            (*baton, "router", model, *named, "--grpc-port", str(port)),
            folder / f"router-{i}.log",
        )
        for i, port in enumerate(ports)
    )
    numeric = ("--dtype", "float32", "--batch-invariant", "--kv-cache-memory-bytes", str(2**28))
    reached = tuple(word for address in addresses for word in ("--router", address))
    workers = tuple(
        Part(
            f"{role}-{i}",
            role,
            (*baton, f"{role}-worker", model, *numeric, *shared, *reached, "--worker-id", f"{role}-{i}"),
            folder / f"{role}-{i}.log",
        )
        for role in ("prefill", "decode")
        for i in range(2)
    )
    return Cluster(routers, workers, redis, addresses)
