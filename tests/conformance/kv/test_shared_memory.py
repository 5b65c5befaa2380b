"""What only shared memory promises: separate processes, read-only pools, nothing left behind."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_kv.connector import HolderUnreachableError
from baton_kv.description import Offer, decode_description, describe_pool
from baton_kv.pool_memory import reserve_memory
from baton_kv.pool_socket import PoolListener, ask_holder
from baton_kv.shared_memory import SharedMemoryConnector
from tests.conformance.kv.holder_process import pattern
from tests.conformance.kv.pairs import HOLDER, LARGE, SMALL, Site, make_order, open_site, run_pull
from tests.conformance.kv.processes import HolderProcess, start_holder


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site("shared_memory") as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_holder() -> Iterator[HolderProcess]:
    """For tests that let it go on."""
    with start_holder("shared_memory") as holder:
        yield holder


@contextmanager
def frozen(holder: HolderProcess) -> Iterator[None]:
    holder.freeze()
    try:
        yield
    finally:
        holder.thaw()


def open_resources() -> Counter[str]:
    """Descriptors and pool mappings of this process."""
    maps = Path("/proc/self/maps").read_text().count("/memfd:baton-kv")
    return Counter(descriptors=len(os.listdir("/proc/self/fd")), maps=maps, threads=threading.active_count())


def test_blocks_cross_processes_and_a_restart(site: Site) -> None:
    puller = site.worker()
    for epoch in (1, 2):
        with start_holder("shared_memory", epoch) as holder:
            puller.connector.connect(HOLDER, holder.description)
            assert run_pull(puller, holder.order({0: 5, 1: 6, 2: 7, 9: 0})).error is None
            for local, remote in {0: 5, 1: 6, 2: 7, 9: 0}.items():
                assert torch.equal(puller.pool[local], pattern(epoch, remote))
            holder.kill()
            outcome = run_pull(puller, holder.order({3: 3}))
            assert (outcome.failed, outcome.error) == ((3,), "holder 'prefill-0' is gone")
            with pytest.raises(HolderUnreachableError, match="Connection refused"):
                puller.connector.connect(HOLDER, holder.description)


def test_a_frozen_holder_is_unreachable_after_the_deadline(site: Site, shared_holder: HolderProcess) -> None:
    connector = SharedMemoryConnector(SMALL, 1, connect_timeout_s=0.2)
    site.exits.callback(connector.close)
    connector.allocate(4)
    with frozen(shared_holder):
        started = time.monotonic()
        with pytest.raises(HolderUnreachableError, match=r"within 0.2 s \(timed out\)"):
            connector.connect(HOLDER, shared_holder.description)
        assert 0.2 <= time.monotonic() - started < 20


def test_a_pull_goes_on_while_its_holder_is_frozen(site: Site, shared_holder: HolderProcess) -> None:
    puller = site.worker()
    puller.connector.connect(HOLDER, shared_holder.description)
    with frozen(shared_holder):
        assert run_pull(puller, shared_holder.order({0: 5})).error is None
        assert torch.equal(puller.pool[0], pattern(1, 5))


def test_a_killed_holder_leaves_nothing_behind(site: Site, tmp_path: Path) -> None:
    puller = site.worker()
    with start_holder("shared_memory", cwd=tmp_path) as holder:
        puller.connector.connect(HOLDER, holder.description)
        proc = Path(f"/proc/{holder.process.pid}")
        files = [os.readlink(file) for file in (proc / "fd").iterdir()]
        assert [name for name in files if name.startswith("/memfd:baton-kv")]
        assert not [name for name in files if "/dev/shm" in name]
        maps = [line.split(maxsplit=5) for line in (proc / "maps").read_text().splitlines()]
        assert {fields[5] for fields in maps if fields[1] == "rw-s"} == {"/memfd:baton-kv (deleted)"}
        address = decode_description(holder.description, SMALL).address("shared_memory")
        assert address in Path("/proc/net/unix").read_text()
        holder.kill()
        assert address not in Path("/proc/net/unix").read_text()
    assert list(tmp_path.iterdir()) == []


def test_neither_descriptors_nor_mappings_grow_over_reconnects(site: Site) -> None:
    puller = site.worker()
    seen = []
    for epoch in range(1, 51):
        holder = site.worker(epoch=epoch)
        puller.connector.connect(HOLDER, holder.connector.describe())
        assert run_pull(puller, make_order(holder, {0: 0}, epoch=epoch)).error is None
        holder.connector.close()
        site.workers.pop()
        del holder
        seen.append(open_resources())
        site.exits.pop_all()
    assert seen[1:] == seen[:1] * 49
    before = open_resources()
    puller.connector.disconnect(HOLDER)
    assert before - open_resources() == Counter(descriptors=2, maps=1)
    puller.connector.close()


def test_a_puller_can_read_the_holders_memory_but_not_write_to_it(site: Site) -> None:
    holder = site.worker()
    before = holder.bytes.clone()
    address = decode_description(holder.connector.describe(), SMALL).address("shared_memory")
    connection, file = ask_holder(address, 1.0)
    with connection, mmap.mmap(file, 16 * SMALL.block_bytes, prot=mmap.PROT_READ) as memory:
        assert memory[:] == before.numpy().tobytes()
        with pytest.raises(TypeError, match="readonly"):
            memory[0] = 1
        with pytest.raises(PermissionError):
            mmap.mmap(file, 4096, prot=mmap.PROT_WRITE)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(file, b"x")
        assert os.fstat(file).st_mode & 0o777 == 0o400
        with pytest.raises(OSError, match="Invalid argument"):
            os.ftruncate(file, 0)
        os.close(file)
    assert torch.equal(holder.bytes, before)


@pytest.mark.parametrize("what", ["size", "seals", "nonce"])
def test_memory_that_is_not_the_one_described_is_refused(site: Site, what: str) -> None:
    puller = site.worker()
    address, num_bytes = "baton-kv-impostor", SMALL.block_bytes + len("baton-kv-impostor")
    if what == "seals":
        file = os.memfd_create("impostor")
        os.ftruncate(file, num_bytes)
    else:
        memory, file = reserve_memory(num_bytes + (what == "size"))
        site.exits.callback(memory.close)
    site.exits.callback(PoolListener(address, file).close)
    description = describe_pool(SMALL, 1, 1, Offer("shared_memory", address)).encode()
    before = open_resources()
    with pytest.raises(HolderUnreachableError, match=rf"the pool that was described \(.*{what}"):
        puller.connector.connect(HOLDER, description)
    assert open_resources()["maps"] == before["maps"]


def test_a_pool_larger_than_the_memory_is_refused_with_both_numbers(site: Site) -> None:
    connector = SharedMemoryConnector(LARGE, 1)
    with pytest.raises(InvalidConfigError, match=r"is \d+ bytes; allowed: at most the \d+ bytes"):
        connector.allocate(2**50 // LARGE.block_bytes)


def test_the_listener_answers_while_the_holder_is_busy(site: Site) -> None:
    """The holder's own thread never runs here: this test occupies it."""
    holder = site.worker()
    pullers = [site.worker() for _ in range(8)]
    for puller in pullers:
        puller.connector.connect(HOLDER, holder.connector.describe())
    for puller in pullers:
        assert run_pull(puller, make_order(holder, {0: 0})).error is None
