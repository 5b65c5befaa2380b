"""`baton serve` on the machines that follow: their ranks as processes, each started again with its leader."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from baton.processes.restarts import Restarts
from baton.processes.tasks import cancel
from baton_core.ranks.rank_layout import ParallelSizes
from baton_service.process import interrupts_held, module_command
from baton_worker.ranks.executor_settings import JOIN_WITHIN_S, environment_of_gpu, started_with, visible_gpus

_STOP_WITHIN_S: Final = 5.0
_LOST: Final = 1
"""Exit code of a rank whose group has ended, or that has failed: the leader may start another group."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNode:
    """One worker's ranks on a machine that follows, as its command line describes them."""

    sizes: ParallelSizes
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    secret: str = field(default="", repr=False)
    """Secret of the leader's ranks, as `secret_of_ranks` returns it."""
    gpus: tuple[str, ...] = ()
    """The GPU of each rank here; none: those that this process sees, in turn."""


async def serve_ranks(nodes: Sequence[RankNode]) -> int:
    """Run the machine's ranks of each worker until its leader ends them, or cancelled.

    Returns 0, or the exit code of a rank that its leader refuses or that finds no leader in time.
    """
    tasks: list[asyncio.Task[int]] = []
    for node in nodes:
        ranks = node.sizes.of_node(node.nnodes, node.node_rank)
        _log.info("ranks %s follow %s:%d", ", ".join(map(str, ranks)), node.master_addr, node.master_port)
        tasks += [asyncio.create_task(_keep_running(node, rank, gpu)) for gpu, rank in enumerate(ranks)]
    try:
        for one in asyncio.as_completed(tasks):
            if code := await one:
                return code
        return 0
    finally:
        await cancel(tasks)


async def _keep_running(node: RankNode, rank: int, gpu: int) -> int:
    """Run a rank, and again where its group has ended by an error; returns its last exit code."""
    loop, restarts = asyncio.get_running_loop(), Restarts()
    while True:
        began_s = loop.time()
        code = await _run(node, rank, gpu)
        if code in range(256) and code != _LOST:
            return code
        wait_s = restarts.on_end(loop.time() - began_s, code, "")
        _log.warning("rank %d %s; it is started again in %g s", rank, restarts.end, wait_s)
        await asyncio.sleep(wait_s)


async def _run(node: RankNode, rank: int, gpu: int) -> int:
    expected = json.dumps(started_with(node.sizes, node.nnodes))
    with interrupts_held():
        process = await asyncio.create_subprocess_exec(
            *(*module_command("baton_worker.rank_process"), "--parent-pid", str(os.getpid())),
            *("--leader-host", node.master_addr, "--leader-port", str(node.master_port)),
            *("--rank", str(rank), "--started-with", expected, "--within", str(JOIN_WITHIN_S)),
            env=environment_of_gpu(gpu, node.gpus or visible_gpus()),
            stdin=asyncio.subprocess.PIPE,  # unlike its arguments, nobody else reads it
        )
    try:
        await process.communicate(node.secret.encode())
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            waiting = asyncio.ensure_future(process.wait())
            await asyncio.wait([waiting], timeout=_STOP_WITHIN_S)
            if process.returncode is None:
                process.kill()
            await waiting
