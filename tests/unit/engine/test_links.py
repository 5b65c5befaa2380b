"""Links of ranks on two machines: shared memory on each of them, gloo between them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_engine.ranks.ranks import Ranks
from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_collectives import SharedCollectives
from baton_kernels.interface.collectives import RankLostError
from baton_kernels.reference.torch_collectives import TorchCollectives
from baton_worker.ranks.links import StoreLinks

SIZES = ParallelSizes(tensor=2, pipeline=2)
MACHINES = ("a", "a", "b", "b")
CPU = torch.device("cpu")


def on_all_ranks(
    links: list[StoreLinks], check: Callable[[Ranks], None], sizes: ParallelSizes = SIZES
) -> None:
    with ThreadPoolExecutor(len(links)) as threads:
        calls = [
            threads.submit(lambda rank=rank, one=one: check(one.open(RankPlace(sizes=sizes, rank=rank))))
            for rank, one in enumerate(links)
        ]
        for call in calls:
            call.result()


def linked() -> list[StoreLinks]:
    library = load_build("auto")
    assert library is not None
    leader = StoreLinks.lead(SIZES, library, CPU, "127.0.0.1", MACHINES)
    others = [StoreLinks(SIZES, library, CPU, leader.address, "127.0.0.1", MACHINES) for _ in range(3)]
    return [leader, *others]


def test_ranks_share_memory_on_a_machine_and_send_between_machines() -> None:
    def check(ranks: Ranks) -> None:
        assert isinstance(ranks.tensor, SharedCollectives)
        assert isinstance(ranks.pipeline, TorchCollectives)
        assert isinstance(ranks.whole, TorchCollectives)
        own = torch.full((1000,), float(ranks.place.rank + 1))
        stage = ranks.place.stage
        assert ranks.tensor.all_reduce(own.clone()).tolist() == [float(4 * stage + 3)] * 1000
        assert ranks.pipeline.all_gather(own)[:, 0].tolist() == [
            ranks.place.tensor_rank + 1.0,
            ranks.place.tensor_rank + 3.0,
        ]
        assert ranks.whole.all_reduce(own.clone())[0] == 10.0

    on_all_ranks(linked(), check)


def test_a_lost_rank_ends_waits_in_shared_memory() -> None:
    links = linked()

    def check(ranks: Ranks) -> None:
        if ranks.place.tensor_rank == 0:
            links[ranks.place.rank].abort()
            with pytest.raises(RankLostError):
                ranks.tensor.all_reduce(torch.ones(8))

    on_all_ranks(links, check)


def test_ranks_that_share_a_gpu_exchange_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL takes a GPU for each rank, and is in no build of torch for CPUs."""
    gpu = torch.device("cuda", 0)
    sizes, machines = ParallelSizes(tensor=2), ("a", "a")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="one"))
    leader = StoreLinks.lead(sizes, None, gpu, "127.0.0.1", machines)
    follower = StoreLinks(sizes, None, gpu, leader.address, "127.0.0.1", machines)

    def check(ranks: Ranks) -> None:
        assert isinstance(ranks.tensor, TorchCollectives)
        assert ranks.tensor.all_reduce(torch.ones(3)).tolist() == [2.0] * 3

    on_all_ranks([leader, follower], check, sizes)
    for one in (leader, follower):
        one.abort()  # gloo has nothing to end


def test_ranks_with_a_gpu_each_exchange_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int, torch.device]] = []

    def over_nccl(
        store: object, name: str, rank: int, size: int, *, device: torch.device, deadline_s: float
    ) -> str:
        asked.append((name, rank, size, device))
        return name

    uuids = {torch.device("cuda", number): f"gpu {number}" for number in range(2)}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuids[device])
    )
    monkeypatch.setattr(TorchCollectives, "over_nccl", over_nccl)
    sizes, machines = ParallelSizes(tensor=2), ("a", "a")
    first, second = uuids
    leader = StoreLinks.lead(sizes, None, first, "127.0.0.1", machines)
    follower = StoreLinks(sizes, None, second, leader.address, "127.0.0.1", machines)
    on_all_ranks([leader, follower], lambda ranks: None, sizes)
    assert sorted(asked, key=lambda one: one[:2]) == [
        ("group-0", 0, 2, first),
        ("group-0", 1, 2, second),
        ("group-1", 0, 2, first),
        ("group-1", 1, 2, second),
    ]
