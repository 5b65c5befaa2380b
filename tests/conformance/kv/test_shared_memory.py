"""Shared memory alone promises separate processes, read-only pools, and that nothing is left behind."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.worker.worker_events import PullDone
from baton_kv import transfer_thread
from baton_kv.connector import ProducerUnreachableError
from baton_kv.description import Offer, decode_description, describe_pool
from baton_kv.pool_memory import reserve_memory
from baton_kv.pool_socket import PoolListener, request_pool
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.transfer_thread import TransferEvent, TransferThread
from tests.conformance.kv.groups import open_groups
from tests.conformance.kv.pairs import LARGE, PRODUCER, SMALL, Site, make_pull, open_site, run_pull
from tests.conformance.kv.processes import ProducerProcess, start_producer
from tests.conformance.kv.producer_process import pattern


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site("shared_memory") as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_producer() -> Iterator[ProducerProcess]:
    """For tests that let it go on."""
    with start_producer("shared_memory") as producer:
        yield producer


@contextmanager
def frozen(producer: ProducerProcess) -> Iterator[None]:
    producer.freeze()
    try:
        yield
    finally:
        producer.thaw()


def open_resources() -> Counter[str]:
    """Descriptors and pool mappings of this process."""
    maps = Path("/proc/self/maps").read_text().count("/memfd:baton-kv")
    return Counter(descriptors=len(os.listdir("/proc/self/fd")), maps=maps, threads=threading.active_count())


def wait_for_maps(num_maps: int) -> None:
    deadline = time.monotonic() + 10.0
    while open_resources()["maps"] > num_maps:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_blocks_cross_processes_and_a_restart(site: Site) -> None:
    consumer = site.worker()
    for epoch in (1, 2):
        with start_producer("shared_memory", epoch) as producer:
            consumer.connector.connect(PRODUCER, producer.description)
            assert run_pull(consumer, producer.pull_of({0: 5, 1: 6, 2: 7, 9: 0})).error == ""
            for local, remote in {0: 5, 1: 6, 2: 7, 9: 0}.items():
                assert torch.equal(consumer.pool[local], pattern(epoch, remote))
            producer.kill()
            outcome = run_pull(consumer, producer.pull_of({3: 3}))
            assert (outcome.failed_block_ids, outcome.error) == ((3,), "producer 'prefill-0' is gone")
            with pytest.raises(ProducerUnreachableError, match="Connection refused"):
                consumer.connector.connect(PRODUCER, producer.description)


def test_a_frozen_holder_is_unreachable_after_the_deadline(
    site: Site, shared_producer: ProducerProcess
) -> None:
    connector = SharedMemoryConnector(SMALL, 1, connect_timeout_s=0.2)
    site.exits.callback(connector.close)
    connector.allocate(4)
    with frozen(shared_producer):
        started = time.monotonic()
        with pytest.raises(ProducerUnreachableError, match=r"within 0.2 s \(timed out\)"):
            connector.connect(PRODUCER, shared_producer.description)
        assert 0.2 <= time.monotonic() - started < 20


def test_a_pull_goes_on_while_its_holder_is_frozen(site: Site, shared_producer: ProducerProcess) -> None:
    consumer = site.worker()
    consumer.connector.connect(PRODUCER, shared_producer.description)
    with frozen(shared_producer):
        assert run_pull(consumer, shared_producer.pull_of({0: 5})).error == ""
        assert torch.equal(consumer.pool[0], pattern(1, 5))


def test_a_killed_holder_leaves_nothing_behind(site: Site, tmp_path: Path) -> None:
    consumer = site.worker()
    with start_producer("shared_memory", cwd=tmp_path) as producer:
        consumer.connector.connect(PRODUCER, producer.description)
        proc = Path(f"/proc/{producer.process.pid}")
        files = [os.readlink(file) for file in (proc / "fd").iterdir()]
        assert [name for name in files if name.startswith("/memfd:baton-kv")]
        assert not [name for name in files if "/dev/shm" in name]
        maps = [line.split(maxsplit=5) for line in (proc / "maps").read_text().splitlines()]
        assert {fields[5] for fields in maps if fields[1] == "rw-s"} == {"/memfd:baton-kv (deleted)"}
        address = decode_description(producer.description, SMALL).address("shared_memory")
        assert address in Path("/proc/net/unix").read_text()
        producer.kill()
        assert address not in Path("/proc/net/unix").read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_thread_lets_go_of_the_memory_of_a_holder_that_is_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_thread, "LOOK_S", 0.01)
    consumer = site.worker()
    events: SimpleQueue[list[TransferEvent]] = SimpleQueue()
    thread = TransferThread(consumer.connector, events.put)
    thread.start()
    before = open_resources()
    with start_producer("shared_memory") as producer:
        pull = producer.pull_of({0: 5})
        source = replace(pull.source, kv_description=producer.description)
        assert thread.execute(replace(pull, source=source))
        while not isinstance(events.get(timeout=10.0)[-1], PullDone):
            pass
        assert open_resources()["maps"] == before["maps"] + 1
        producer.kill()
    wait_for_maps(before["maps"])
    thread.close(10.0)


def test_neither_descriptors_nor_mappings_grow_over_reconnects(site: Site) -> None:
    consumer = site.worker()
    seen = []
    for epoch in range(1, 51):
        producer = site.worker(epoch=epoch)
        consumer.connector.connect(PRODUCER, producer.connector.describe())
        assert run_pull(consumer, make_pull(producer, {0: 0}, epoch=epoch)).error == ""
        producer.connector.close()
        site.workers.pop()
        del producer
        seen.append(open_resources())
        site.exits.pop_all()
    assert seen[1:] == seen[:1] * 49
    before = open_resources()
    consumer.connector.disconnect(PRODUCER)
    assert before - open_resources() == Counter(descriptors=2, maps=1)
    consumer.connector.close()


def test_a_puller_can_read_the_holders_memory_but_not_write_to_it(site: Site) -> None:
    producer = site.worker()
    before = producer.bytes.clone()
    address = decode_description(producer.connector.describe(), SMALL).address("shared_memory")
    connection, file = request_pool(address, 1.0)
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
    assert torch.equal(producer.bytes, before)


@pytest.mark.parametrize("what", ["size", "seals", "nonce"])
def test_memory_that_is_not_the_one_described_is_refused(site: Site, what: str) -> None:
    consumer = site.worker()
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
    with pytest.raises(ProducerUnreachableError, match=rf"the pool that was described \(.*{what}"):
        consumer.connector.connect(PRODUCER, description)
    assert open_resources()["maps"] == before["maps"]


def test_a_pool_larger_than_the_memory_is_refused_with_both_numbers(site: Site) -> None:
    connector = SharedMemoryConnector(LARGE, 1)
    with pytest.raises(InvalidConfigError, match=r"is \d+ bytes; allowed: at most the \d+ bytes"):
        connector.allocate(2**50 // LARGE.block_bytes)


def test_the_listener_answers_while_the_holder_is_busy(site: Site) -> None:
    """The producer's own thread never runs here: this test occupies it."""
    producer = site.worker()
    consumers = [site.worker() for _ in range(8)]
    for consumer in consumers:
        consumer.connector.connect(PRODUCER, producer.connector.describe())
    for consumer in consumers:
        assert run_pull(consumer, make_pull(producer, {0: 0})).error == ""


def test_all_ranks_let_go_of_the_memory_of_a_group_that_is_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_thread, "LOOK_S", 0.01)
    two = ParallelSizes(tensor=2)
    with open_groups(site, SMALL, two, two) as (producer, consumer):
        before = open_resources()
        assert consumer.pull(producer, {0: 1}).error == ""
        assert open_resources()["maps"] == before["maps"] + 2
        producer.close()
        wait_for_maps(before["maps"])
