"""Exchanges between ranks, which are threads here: shared memory by the C++ kernels, and gloo."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count
from typing import TypeVar

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_collectives import SLOT_BYTES, SharedCollectives, abort, shared_bytes
from baton_kernels.interface.collectives import Alone, Collectives, RankLostError
from baton_kernels.reference.torch_collectives import TorchCollectives

pytestmark = pytest.mark.slow

T = TypeVar("T")
Group = Callable[[int], list[Collectives]]
_names = count()


def shared(size: int, deadline_s: float = 20.0) -> tuple[list[Collectives], mmap.mmap]:
    library = load_build()
    if library is None:
        pytest.skip("it needs the C++ kernels, which this process has not")
    memory = mmap.mmap(-1, 64 + shared_bytes(size))
    ranks: list[Collectives] = [
        SharedCollectives(library, memory, 64, rank, size, deadline_s=deadline_s) for rank in range(size)
    ]
    return ranks, memory


def gloo(size: int) -> list[Collectives]:
    store, name = HashStore(), f"group-{next(_names)}"

    def meet(rank: int) -> Collectives:
        return TorchCollectives.over_gloo(store, name, rank, size, deadline_s=20)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(meet, range(size)))


def gloo_in_two_steps(size: int) -> list[Collectives]:
    ranks = gloo(size)
    for one in ranks:
        assert isinstance(one, TorchCollectives)
        one._one_step_bytes = 0
    return ranks


GROUPS: dict[str, Group] = {
    "shared": lambda size: shared(size)[0],
    "gloo": gloo,
    "gloo in two steps": gloo_in_two_steps,
}


@contextmanager
def together(ranks: list[Collectives]) -> Iterator[Callable[[Callable[[Collectives], T]], list[T]]]:
    """Run a function for every rank at a time; the results are by rank."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        yield lambda function: list(threads.map(function, ranks))


def ordered_sum(parts: Tensor) -> Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts.dtype)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", GROUPS)
def test_sums_are_those_in_the_order_of_the_ranks_to_the_bit(kind: str, size: int) -> None:
    with together(GROUPS[kind](size)) as run:
        for number, shape in enumerate(((1,), (3, 7), (1, 4096), (0, 5), (33, 3000))):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                generator = torch.Generator().manual_seed(number)
                parts = torch.randn((size, *shape), generator=generator).to(dtype)
                sums = run(lambda rank, parts=parts: rank.all_reduce(parts[rank.rank].clone()))  # type: ignore[misc]
                for one in sums:
                    assert torch.equal(one, ordered_sum(parts))


@pytest.mark.parametrize("kind", GROUPS)
def test_every_exchange_gives_what_was_put_in(kind: str) -> None:
    size, long = 3, torch.arange(SLOT_BYTES, dtype=torch.int64)  # in several turns
    with together(GROUPS[kind](size)) as run:
        for x in (torch.tensor([1.5]), torch.arange(12).view(3, 4), long):
            own = [x + rank for rank in range(size)]
            for gathered in run(lambda rank, own=own: rank.all_gather(own[rank.rank])):  # type: ignore[misc]
                assert torch.equal(gathered, torch.stack(own))
            first, second, third = run(lambda rank, own=own: rank.gather(own[rank.rank], 1))  # type: ignore[misc]
            assert first is third is None
            assert second is not None
            assert torch.equal(second, torch.stack(own))
            for told in run(lambda rank, own=own: rank.broadcast(own[rank.rank], 2)):  # type: ignore[misc]
                assert torch.equal(told, own[2])

        def hand_on(rank: Collectives) -> Tensor:
            """From the first rank to the last one, with a change at each."""
            x = long.clone() if rank.rank == 0 else rank.receive(torch.empty_like(long), rank.rank - 1)
            x = x + 1
            if rank.rank + 1 < size:
                rank.send(x, rank.rank + 1)
            return x

        assert torch.equal(run(hand_on)[-1], long + size)


@pytest.mark.parametrize("is_crowded", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_thousands_of_exchanges_in_turns_stay_in_step(size: int, is_crowded: bool) -> None:
    """Beside busy processes ranks sleep until they are woken, instead of yielding."""
    ranks, _ = shared(size)

    def work(rank: Collectives) -> float:
        x = torch.ones(8)
        for number in range(3000):
            x = rank.all_reduce(x) / size
            if number % 7 == 0:
                x = rank.broadcast(x, number % size)
        return float(x.sum())

    with busy_cores() if is_crowded else nullcontext(), together(ranks) as run:
        assert run(work) == [8.0] * size


@contextmanager
def busy_cores() -> Iterator[None]:
    """Have a process of the lowest priority compute on each core."""
    command = ["nice", "-n", "19", sys.executable, "-c", "while True: pass"]
    with ExitStack() as exits:
        for _ in range(os.cpu_count() or 1):
            process = exits.enter_context(subprocess.Popen(command))
            exits.callback(process.kill)
        yield


def test_a_rank_that_does_not_come_is_lost_after_the_deadline() -> None:
    (rank, _), _ = shared(2, deadline_s=0.2)
    with pytest.raises(RankLostError, match=r"rank 1 is lost: it has not come within 0\.2 s"):
        rank.all_reduce(torch.ones(1))


def test_the_end_of_a_group_ends_every_wait() -> None:
    (rank, _), memory = shared(2, deadline_s=60)
    threading.Timer(0.2, lambda: abort(memory, 64)).start()
    for wait in (lambda: rank.all_reduce(torch.ones(1)), lambda: rank.receive(torch.ones(1), 1)):
        with pytest.raises(RankLostError, match="rank 1 is lost"):
            wait()


def test_a_single_rank_exchanges_nothing() -> None:
    x = torch.arange(3.0)
    alone = Alone()
    assert alone.all_reduce(x) is x
    assert alone.broadcast(x, 0) is x
    assert torch.equal(alone.all_gather(x), x[None])
