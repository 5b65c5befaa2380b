"""Real services of this machine for a replay: routers that share their workers, and their CPU time.

All routers stay up and take turns, so that runs under different settings follow each other closely; the
caches are emptied in between. Every wait has a deadline, and leaving the cluster ends its processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub, OperatorStub
from baton_service.grpc_options import client_options
from bench.processes import ROOT, START_WITHIN_S, cpu_s, start_module, start_router
from bench.replay.loads import Load, LoadResult, read, write
from bench.replay.timed_engine import METER_FIELDS

TOPOLOGIES = {
    "1p1d": ("prefill", "decode"),
    "2m": ("mixed", "mixed"),
    "2p2d": ("prefill", "prefill", "decode", "decode"),
    "4m": ("mixed",) * 4,
}
SETTLE_WITHIN_S = 20.0
STOP_WITHIN_S = 10.0
POLL_S = 0.05
PATIENT = ("--session-timeout", "10")
"""Two cores stand for many: a process that waits for its turn is not dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The processes to start."""

    topology: str
    routers: Mapping[str, Sequence[str]]
    """Flags of each router, by the name of its setting."""
    worker_flags: Sequence[str]
    """Flags of `bench.replay.timed_worker`, or of `baton` workers."""
    is_timed: bool = True
    """True if the workers' step is a timer; otherwise they run the bundled model."""

    @property
    def roles(self) -> tuple[str, ...]:
        return TOPOLOGIES[self.topology]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The machine's use by a run: shares of its wall time."""

    router: float
    """CPU of the router in use, in cores."""
    load_generator: float
    """CPU, in cores."""
    workers: float
    """CPU of all workers' processes, in cores."""
    steps: Mapping[str, float]
    """Share of each worker's time that its engine was in a step; empty if the engine is no timer."""
    late_s: float
    """Mean time by which a timed step took longer than it should have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clocks:
    """CPU time and steps of the processes so far."""

    router_s: float
    workers_s: float
    meters: Mapping[str, NDArray[np.float64]]

    def since(self, before: _Clocks, result: LoadResult) -> Usage:
        wall_s = result.wall_s
        spent = {name: meter - before.meters[name] for name, meter in self.meters.items()}
        num_steps = sum(meter[1] for meter in spent.values())
        return Usage(
            router=(self.router_s - before.router_s) / wall_s,
            load_generator=result.cpu_s / wall_s,
            workers=(self.workers_s - before.workers_s) / wall_s,
            steps={name: float(meter[0]) / wall_s for name, meter in spent.items()},
            late_s=float(sum(meter[2] for meter in spent.values()) / max(1, num_steps)),
        )


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Running services."""

    plan: ClusterPlan
    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)
    """gRPC addresses of the routers, by setting."""
    routers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    meters: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def run(self, setting: str, load: Path, *, within_s: float) -> tuple[LoadResult, Usage]:
        """Empty the caches, then send a load through one router.

        Raises:
            RuntimeError: a process has died, or the load did not end in time.
        """
        self.empty_caches()
        before = self._read_clocks(setting)
        result = self._send(setting, load, within_s)
        self.check_alive()
        return result, self._read_clocks(setting).since(before, result)

    def _send(self, setting: str, load: Path, within_s: float) -> LoadResult:
        path = self.folder / "result.msgpack"
        path.unlink(missing_ok=True)
        flags = ["--address", self.addresses[setting], "--load", str(load), "--result", str(path)]
        flags += ["--timeout", str(within_s), "--parent-pid", str(os.getpid())]
        command = [sys.executable, "-m", "bench.replay.load_generator", *flags]
        try:
            subprocess.run(
                command, check=True, timeout=within_s + START_WITHIN_S, stdin=subprocess.DEVNULL, cwd=ROOT
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"the load generator failed under {setting}: {error}") from error
        return read(path, LoadResult)

    def _read_clocks(self, setting: str) -> _Clocks:
        return _Clocks(
            router_s=cpu_s(self.routers[setting].pid),
            workers_s=sum(cpu_s(worker.pid) for worker in self.workers.values()),
            meters={name: meter.copy() for name, meter in self.meters.items()},
        )

    def empty_caches(self) -> None:
        """Forget every cached block; waits for requests that have ended at their client alone.

        Raises:
            RuntimeError: blocks are still in use after the deadline.
        """
        address = next(iter(self.addresses.values()))
        request = pb.ControlRequest(action="reset_prefix_cache", timeout_s=SETTLE_WITHIN_S)

        def is_empty() -> bool:
            with grpc.insecure_channel(address, options=client_options()) as channel:
                operator = OperatorStub(channel)  # type: ignore[no-untyped-call]
                answer = operator.Control(request, timeout=SETTLE_WITHIN_S)
            if errors := [result for result in answer.results if result.error_code]:
                raise RuntimeError(f"a worker cannot empty its cache: {errors[0]}")
            return all(json.loads(result.result_json)["num_in_use"] == 0 for result in answer.results)

        _wait_for(is_empty, SETTLE_WITHIN_S, "the workers still use blocks of requests that have ended")

    def check_alive(self) -> None:
        """Raises: RuntimeError: a process has died."""
        for name, process in {**self.routers, **self.workers}.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with exit code {process.returncode}")

    def start(self) -> None:
        """Start routers, then workers, and wait until every router has them all."""
        for setting, flags in self.plan.routers.items():
            self._start_router(setting, flags)
        for number, role in enumerate(self.plan.roles):
            self._start_worker(f"{role}-{number}", role)
        for address in self.addresses.values():
            _wait_for(
                lambda address=address: self._num_workers(address) == len(self.plan.roles),  # type: ignore[misc]
                START_WITHIN_S,
                "the workers have not joined",
            )

    def stop(self) -> None:
        """End the workers, then the routers; kill what takes too long."""
        for group in (self.workers, self.routers):
            for process in group.values():
                process.terminate()
            deadline = time.monotonic() + STOP_WITHIN_S
            for process in group.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def _start_router(self, setting: str, flags: Sequence[str]) -> None:
        self.routers[setting], addresses = start_router("--enable-operator-routes", *PATIENT, *flags)
        self.addresses[setting] = addresses["address"]

    def _start_worker(self, name: str, role: str) -> None:
        flags = [*self.plan.worker_flags, *PATIENT, "--worker-id", name, "--parent-pid", str(os.getpid())]
        for address in self.addresses.values():
            flags += ["--router", address]
        if self.plan.is_timed:
            path = self.folder / f"{name}.meter"
            self.meters[name] = np.memmap(path, np.float64, "w+", shape=METER_FIELDS)
            flags += ["--role", role, "--meter", str(path)]
            self.workers[name] = start_module("bench.replay.timed_worker", *flags)
        else:
            self.workers[name] = start_module("baton", f"{role}-worker", *flags, "--log-level", "warning")

    def _num_workers(self, address: str) -> int:
        self.check_alive()
        with grpc.insecure_channel(address, options=client_options()) as channel:
            stub = BatonStub(channel)  # type: ignore[no-untyped-call]
            return len(stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=START_WITHIN_S).workers)


@contextmanager
def running(plan: ClusterPlan, folder: Path) -> Iterator[Cluster]:
    """A cluster that is ready; `folder` is for its files."""
    cluster = Cluster(plan=plan, folder=folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def write_load(load: Load, folder: Path, name: str = "load") -> Path:
    path = folder / f"{name}.msgpack"
    write(path, load)
    return path


def _wait_for(is_done: Callable[[], bool], within_s: float, failure: str) -> None:
    deadline = time.monotonic() + within_s
    while not is_done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{failure} after {within_s:g} s")
        time.sleep(POLL_S)
