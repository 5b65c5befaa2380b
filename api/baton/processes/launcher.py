"""`baton serve`: router and workers as processes of this machine, in one process group.

A process that ends is restarted while the others serve. The launcher ends by itself only before
any worker has served: where the router or every worker refuses its settings, or every worker keeps ending.
When the launcher ends, so do its children; when it is killed, the kernel ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from baton.processes.banner import Announcement, Place
from baton.processes.gpu_binding import GpuShare
from baton.processes.restarts import is_start_hopeless
from baton.processes.router_group import RouterGroup
from baton.processes.supervised_router import SupervisedRouter
from baton.processes.supervised_worker import SupervisedWorker, WorkerReports
from baton.processes.tasks import cancel, cancelled_at_end, ends_before
from baton_core.errors import InvalidConfigError
from baton_service.process import report, report_update
from baton_service.stop_signals import DEFAULT_SHUTDOWN_TIMEOUT_S
from baton_worker.kv_events.kv_events_config import KVEventsConfig

STOP_WITHIN_S = 10.0
"""After the shutdown timeout: of the router, and then of the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """The processes to start. The argument lists are those of the children's own commands."""

    router_args: tuple[str, ...]
    worker_args: tuple[str, ...]
    num_routers: int = 1
    """Processes of the router."""
    num_prefill_workers: int
    num_decode_workers: int
    num_mixed_workers: int
    data_parallel_ranks: range = range(1)
    """Each of these ranks has so many workers."""
    cpu_shares: tuple[tuple[str, int], ...] = ()
    """`--cpu-bind` and threads of each worker, in the order of `roles`; without, they decide themselves."""
    gpu_shares: tuple[GpuShare, ...] = ()
    """GPUs of each worker, in the order of `roles`; without, they decide themselves."""
    metrics_port: int | None = None
    """Port of the first worker's metrics, the next worker's is the next one; 0 is any, None is none."""
    rank_address: tuple[str, int] | None = None
    """This machine's address, as in a URL, and the port at which ranks of other machines find the first
    worker's leader; the next worker's is the next one. None: there are none."""
    kv_events: KVEventsConfig = field(default_factory=KVEventsConfig)
    """KV events of the first worker; the next worker's ports are the next ones."""
    model_name: str = ""
    """Its first name."""
    is_pooling: bool = False
    """The model pools, so that no worker has to decode."""
    is_encrypted: bool = False
    """HTTP clients use TLS."""
    report_fd: int | None = None
    """File descriptor for the router's addresses, once they are bound."""
    shutdown_timeout_s: float = DEFAULT_SHUTDOWN_TIMEOUT_S
    """Time that the children have to finish their requests."""

    def __post_init__(self) -> None:
        if not (self.num_decode_workers or self.num_mixed_workers or self.is_pooling):
            allowed = "one decoding worker or more, unless the model pools"
            raise InvalidConfigError(f"--decode-workers and --mixed are 0; allowed: {allowed}")
        if not (self.num_prefill_workers or self.num_mixed_workers):
            raise InvalidConfigError("--prefill-workers and --mixed are 0; allowed: one of them over 0")
        if self.kv_events.is_published:
            self.kv_events.for_worker(len(self.roles) - 1)

    @property
    def stop_within_s(self) -> float:
        """Time that a child has from SIGTERM to its end."""
        return self.shutdown_timeout_s + STOP_WITHIN_S

    @property
    def roles(self) -> list[str]:
        """Command of each worker: all of a kind, rank by rank, before those of the next kind."""
        num_ranks = len(self.data_parallel_ranks)
        return (
            ["prefill-worker"] * self.num_prefill_workers * num_ranks
            + ["decode-worker"] * self.num_decode_workers * num_ranks
            + ["mixed-worker"] * self.num_mixed_workers * num_ranks
        )

    def data_parallel_rank(self, number: int) -> int:
        """Return the rank of the worker with this number: workers of a kind are dealt out to the ranks."""
        first = self.roles.index(self.roles[number])
        return self.data_parallel_ranks[(number - first) % len(self.data_parallel_ranks)]


async def serve(cluster: LocalCluster) -> int:
    """Start everything and keep it running until cancelled.

    Returns the exit code with which the router refused its first start, or the last worker ended its start.
    """
    reports, has_served = WorkerReports(), asyncio.Event()
    workers: list[SupervisedWorker] = []

    def is_hopeless() -> bool:
        return is_start_hopeless((one.restarts for one in workers), has_served=has_served.is_set())

    is_one = cluster.num_routers == 1
    make = SupervisedRouter if is_one else partial(RouterGroup, num_processes=cluster.num_routers)
    router: SupervisedRouter | RouterGroup = make(
        cluster.router_args,
        stop_within_s=cluster.stop_within_s,
        report_workers=lambda write_fd: reports.write(workers, write_fd),
        announce=lambda addresses, began_s: _announcement(cluster, addresses, began_s, has_served.set),
    )
    async with cancelled_at_end(router.run()) as router_task:
        if await ends_before(router_task, router.bound):
            return router_task.result()
        addresses = router.bound.result()
        report(cluster.report_fd, address=addresses["address"], http_address=addresses["http_address"])
        for number in range(len(cluster.roles)):
            workers.append(
                _supervised_worker(cluster, number, addresses["address"], reports.notify, is_hopeless)
            )
        reports.notify()
        code = await _supervise(router_task, workers)
        reasons = [worker.restarts.reason for worker in workers if worker.restarts.reason]
        report_update(cluster.report_fd, error="; ".join(dict.fromkeys(reasons)))
        return code


def _announcement(
    cluster: LocalCluster, addresses: dict[str, str], began_s: float, on_registered: Callable[[], object]
) -> Announcement:
    place = Place(
        http=addresses["http_address"],
        grpc=addresses["address"],
        scheme="https" if cluster.is_encrypted else "http",
    )
    return Announcement(
        model_name=cluster.model_name,
        num_workers=len(cluster.roles),
        place=place,
        began_s=began_s,
        on_registered=on_registered,
    )


async def _supervise(router_task: asyncio.Task[int], workers: Sequence[SupervisedWorker]) -> int:
    """Keep the workers running until they are given up; the router ends first."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        done, _ = await asyncio.wait([router_task, *tasks], return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        for worker in workers:
            worker.let_end()
        await cancel([router_task])
        await cancel(tasks)


def _supervised_worker(
    cluster: LocalCluster,
    number: int,
    address: str,
    on_change: Callable[[], None],
    gives_up: Callable[[], bool],
) -> SupervisedWorker:
    command = cluster.roles[number]
    return SupervisedWorker(
        command,
        f"{command.split('-')[0]}-{number}",
        (*cluster.worker_args, "--router", address, *_own_args(cluster, number)),
        stop_within_s=cluster.stop_within_s,
        on_change=on_change,
        gives_up=gives_up,
    )


def _own_args(cluster: LocalCluster, number: int) -> list[str]:
    """The arguments in which the worker with this number differs from others of its role."""
    args = ["--data-parallel-rank", str(cluster.data_parallel_rank(number))]
    if cluster.cpu_shares:
        cpus, num_threads = cluster.cpu_shares[number]
        args += ["--cpu-bind", cpus, "--num-threads", str(num_threads)]
    if cluster.gpu_shares:
        share = cluster.gpu_shares[number]
        args += ["--gpu-bind", share.value, "--gpu-workers", str(share.num_workers)]
    if cluster.metrics_port is not None:
        args += ["--metrics-port", str(cluster.metrics_port + number if cluster.metrics_port else 0)]
    if cluster.rank_address is not None:
        # Other machines' ranks find the leader there, and read the pools of this machine's ranks.
        host, first_port = cluster.rank_address
        args += ["--master-port", str(first_port + number), "--peer-address", f"tcp://{host}:0"]
    if cluster.kv_events.is_published:
        args += ["--kv-events-config", cluster.kv_events.for_worker(number).as_json()]
    return args
