"""The load of workers in other processes, as a router tells it and an `LLM` reads it."""

from __future__ import annotations

from baton.executors.spawned_executor import read_load
from baton_core.blocks.block_residency import RESIDENCY_BOUNDS
from baton_core.sessions.worker_info import BucketCounts, EngineFigures, Role, WorkerLoad
from baton_core.step_work import StepWork
from baton_proto.v1 import baton_pb2 as pb
from baton_router.grpc.services import describe_worker
from tests.builders import make_worker_info


def told(worker_id: str, figures: EngineFigures | None) -> pb.ModelInfo.Worker:
    return describe_worker(
        make_worker_info(worker_id, Role.MIXED), WorkerLoad(num_running=2, figures=figures)
    )


def stays(count: int) -> BucketCounts:
    return BucketCounts(counts=(0, count, *(0 for _ in RESIDENCY_BOUNDS[1:])), total=0.5 * count)


def test_what_workers_measure_is_read_as_that_of_one_engine() -> None:
    figures = [
        EngineFigures(
            block_residency=(stays(count), stays(0), stays(2 * count)),
            work=StepWork(flops=100.0 * count, read_bytes=10.0 * count, written_bytes=count),
        )
        for count in (1, 3)
    ]
    load = read_load(pb.ModelInfo(workers=[told("w1", figures[0]), told("w2", figures[1]), told("w3", None)]))
    assert load.num_running == 6
    assert [one.count for one in load.block_residency] == [4, 0, 8]
    assert [one.total for one in load.block_residency] == [2.0, 0.0, 4.0]
    assert load.work == StepWork(flops=200.0, read_bytes=20.0, written_bytes=2.0), "of one accelerator"


def test_workers_that_measure_nothing_tell_nothing() -> None:
    load = read_load(pb.ModelInfo(workers=[told("w1", EngineFigures()), told("w2", None)]))
    assert (load.work, load.block_residency) == (None, ())
