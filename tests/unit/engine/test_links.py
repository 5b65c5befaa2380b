"""Links of ranks on two machines: shared memory on each of them, gloo between them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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


def on_all_ranks(links: list[StoreLinks], check: Callable[[Ranks], None]) -> None:
    with ThreadPoolExecutor(len(links)) as threads:
        calls = [
            threads.submit(lambda rank=rank, one=one: check(one.open(RankPlace(sizes=SIZES, rank=rank))))
            for rank, one in enumerate(links)
        ]
        for call in calls:
            call.result()


def linked() -> list[StoreLinks]:
    library = load_build("auto")
    assert library is not None
    leader = StoreLinks.lead(SIZES, library, "127.0.0.1", MACHINES)
    return [leader, *(StoreLinks(SIZES, library, leader.address, "127.0.0.1", MACHINES) for _ in range(3))]


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
