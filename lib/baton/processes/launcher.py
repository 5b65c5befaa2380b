"""`baton serve`: router and workers as processes of this machine, in one process group.

A worker that dies, or that somebody else tells to stop, is started again, unless its settings are wrong or it
keeps dying. When the launcher ends, so do its children; when it is killed, the kernel ends them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections import deque
from dataclasses import dataclass, field

from baton.kv_events.kv_events_config import KVEventsConfig
from baton.processes.announcement import Announcement, announcing, reading
from baton.processes.banner import Place
from baton.processes.process import EXIT_BAD_CONFIG, interrupts_held, report
from baton_core.errors import ErrorCode, InvalidConfigError, RequestError
from baton_service.stop_signals import DEFAULT_SHUTDOWN_TIMEOUT_S

MAX_RESTARTS = 3
"""Of one worker, within `RESTART_WINDOW_S`."""
RESTART_WINDOW_S = 60.0
STOP_WITHIN_S = 10.0
"""After the shutdown timeout: of the router, and then of the workers."""
_START_WITHIN_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """What to start. The argument lists are those of the children's own commands."""

    router_args: tuple[str, ...]
    worker_args: tuple[str, ...]
    num_prefill_workers: int
    num_decode_workers: int
    num_mixed_workers: int
    cpu_shares: tuple[tuple[str, int], ...] = ()
    """`--cpu-bind` and threads of each worker, in the order of `roles`; without, they decide themselves."""
    metrics_port: int | None = None
    """Of the first worker's metrics, the next worker's is the next one; 0 is any, None is none."""
    kv_events: KVEventsConfig = field(default_factory=KVEventsConfig)
    """Of the first worker; the next worker's ports are the next ones."""
    model_name: str = ""
    """Its first name."""
    is_encrypted: bool = False
    """HTTP clients use TLS."""
    report_fd: int | None = None
    """Where to write the router's addresses, once they are bound."""
    shutdown_timeout_s: float = DEFAULT_SHUTDOWN_TIMEOUT_S
    """How long the children may take to end what they have."""

    def __post_init__(self) -> None:
        if not (self.num_decode_workers or self.num_mixed_workers):
            raise InvalidConfigError(
                "--decode-workers and --mixed are 0; allowed: one decoding worker or more"
            )
        if not (self.num_prefill_workers or self.num_mixed_workers):
            raise InvalidConfigError("--prefill-workers and --mixed are 0; allowed: one of them over 0")
        if self.kv_events.is_published:
            self.kv_events.for_worker(len(self.roles) - 1)

    @property
    def roles(self) -> list[str]:
        """Command of each worker."""
        return (
            ["prefill-worker"] * self.num_prefill_workers
            + ["decode-worker"] * self.num_decode_workers
            + ["mixed-worker"] * self.num_mixed_workers
        )


async def serve(cluster: LocalCluster) -> int:
    """Start everything and keep it running until cancelled or until a child cannot go on; an exit code."""
    children: list[asyncio.subprocess.Process] = []
    began_s = asyncio.get_running_loop().time()
    read_fd, write_fd = os.pipe()
    async with reading(read_fd) as reports:  # to the end: a router that cannot report complains
        try:
            router = await _start_router(cluster, write_fd, children)
            addresses = await _first_report(router, reports)
            if not addresses:
                return await router.wait()
            report(cluster.report_fd, address=addresses["address"], http_address=addresses["http_address"])
            async with announcing(_announcement(cluster, addresses, began_s), reports):
                return await _keep_all_running(cluster, router, addresses["address"], children)
        finally:
            await _stop(children, cluster.shutdown_timeout_s + STOP_WITHIN_S)


def _announcement(cluster: LocalCluster, addresses: dict[str, str], began_s: float) -> Announcement:
    place = Place(
        http=addresses["http_address"],
        grpc=addresses["address"],
        scheme="https" if cluster.is_encrypted else "http",
    )
    return Announcement(
        model_name=cluster.model_name, num_workers=len(cluster.roles), place=place, began_s=began_s
    )


async def _keep_all_running(
    cluster: LocalCluster,
    router: asyncio.subprocess.Process,
    address: str,
    children: list[asyncio.subprocess.Process],
) -> int:
    """Keep the workers running until the router has ended or a worker is given up; its exit code."""
    watches = [asyncio.create_task(router.wait())]
    for number, command in enumerate(cluster.roles):
        args = (
            *cluster.worker_args,
            "--router",
            address,
            "--worker-id",
            f"{command.split('-')[0]}-{number}",
            *_cpu_args(cluster.cpu_shares, number),
            *_metrics_args(cluster.metrics_port, number),
            *_kv_events_args(cluster.kv_events, number),
        )
        watches.append(asyncio.create_task(_keep_running(command, args, children)))
    try:
        done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.wait(watches)
    return next(iter(done)).result()


def _cpu_args(shares: tuple[tuple[str, int], ...], number: int) -> tuple[str, ...]:
    if not shares:
        return ()
    cpus, num_threads = shares[number]
    return ("--cpu-bind", cpus, "--num-threads", str(num_threads))


def _metrics_args(first_port: int | None, number: int) -> tuple[str, ...]:
    if first_port is None:
        return ()
    return ("--metrics-port", str(first_port + number if first_port else 0))


def _kv_events_args(config: KVEventsConfig, number: int) -> tuple[str, ...]:
    return ("--kv-events-config", config.for_worker(number).as_json()) if config.is_published else ()


async def _start_router(
    cluster: LocalCluster, write_fd: int, children: list[asyncio.subprocess.Process]
) -> asyncio.subprocess.Process:
    """Start the router, which reports to `write_fd`: its addresses, then its workers whenever they change."""
    try:
        args = (*cluster.router_args, "--report-fd", str(write_fd))
        return await _start("router", args, children, pass_fds=(write_fd,))
    finally:
        os.close(write_fd)


async def _first_report(router: asyncio.subprocess.Process, reports: asyncio.StreamReader) -> dict[str, str]:
    """The addresses of the router once it is bound; none if it ended instead."""
    try:
        line = await asyncio.wait_for(reports.readline(), _START_WITHIN_S)
    except TimeoutError:
        router.kill()
        text = f"the router did not report its addresses within {_START_WITHIN_S:g} s"
        raise RequestError(ErrorCode.UNAVAILABLE, text) from None
    addresses: dict[str, str] = json.loads(line) if line else {}
    return addresses


async def _keep_running(
    command: str, args: tuple[str, ...], children: list[asyncio.subprocess.Process]
) -> int:
    """Run a worker, and again when it dies; returns the exit code that makes it not worth another try."""
    loop = asyncio.get_running_loop()
    deaths: deque[float] = deque(maxlen=MAX_RESTARTS)
    while True:
        child = await _start(command, args, children)
        code = await child.wait()
        children.remove(child)
        if code == 0:
            _log.info("%s was told to stop and is started again", command)
            continue
        is_dying_often = len(deaths) == MAX_RESTARTS and loop.time() - deaths[0] < RESTART_WINDOW_S
        if code == EXIT_BAD_CONFIG or is_dying_often:
            _log.error("%s ended with exit code %d", command, code)
            return code
        deaths.append(loop.time())
        _log.warning("%s died (exit code %d) and is started again", command, code)


async def _start(
    command: str,
    args: tuple[str, ...],
    children: list[asyncio.subprocess.Process],
    pass_fds: tuple[int, ...] = (),
) -> asyncio.subprocess.Process:
    with interrupts_held():
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "baton", command, "--parent-pid", str(os.getpid()), *args),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=pass_fds,
        )
    children.append(child)
    return child


async def _stop(children: list[asyncio.subprocess.Process], within_s: float) -> None:
    """End the router, which lets its requests end, then the workers; kill what takes too long."""
    for group in (children[:1], children[1:]):
        running = [child for child in group if child.returncode is None]
        for child in running:
            child.terminate()
        if running:
            await asyncio.wait([asyncio.ensure_future(c.wait()) for c in running], timeout=within_s)
        for child in running:
            if child.returncode is None:
                _log.warning("process %d did not end within %g s and is killed", child.pid, within_s)
                child.kill()
                await child.wait()
