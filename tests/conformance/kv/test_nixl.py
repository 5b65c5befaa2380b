"""NIXL alone reads from other processes, with and without one-sided reads, and outlives their producers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_kv import nixl_library
from baton_kv.curve import CurveKeys
from baton_kv.nixl import NixlConnector
from baton_kv.nixl_agent import NixlAgent
from baton_kv.nixl_consumer import NixlTimings
from baton_kv.nixl_messages import ReadingBegan, ReadingEnded, encode_notice
from baton_kv.nixl_producer import FORGET_S, PoolServer
from baton_kv.transport import Listen
from tests.conformance.kv.pairs import (
    LARGE,
    MANY,
    PRODUCER,
    SMALL,
    Site,
    Worker,
    make_pull,
    needs_nixl,
    open_site,
    run_pull,
)
from tests.conformance.kv.processes import start_producer
from tests.conformance.kv.producer_process import pattern

TIMINGS = NixlTimings(silence_s=1.0, fence_s=0.3, fence_share=1.0)
ALL = {block_id: block_id for block_id in range(MANY)}


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site("nixl") as opened:
        opened.make = lambda spec, epoch: NixlConnector(spec, epoch, timings=TIMINGS)
        yield opened


def has_pattern(consumer: Worker, epoch: int) -> bool:
    return all(
        torch.equal(consumer.pool[block_id], pattern(epoch, block_id, LARGE)) for block_id in (0, 9, 31)
    )


@needs_nixl
@pytest.mark.parametrize("ways", ["all", "tcp"])
def test_a_killed_holder_fails_its_orders_and_one_of_the_same_name_takes_its_place(
    site: Site, ways: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", ways)
    consumer = site.worker(LARGE, num_blocks=MANY)
    with start_producer("nixl", size="large") as producer:
        consumer.connector.connect(PRODUCER, producer.description)
        assert run_pull(consumer, producer.pull_of(ALL)).error == ""
        assert has_pattern(consumer, 1)
        consumer.connector.pull(producer.pull_of(ALL))
        assert consumer.poll() == []
        producer.kill()
        (outcome,) = consumer.collect(1)
        assert outcome.failed_block_ids == tuple(range(MANY))
        assert re.match(r"producer 'prefill-0' is gone \(NIXL_ERR_\w+\); waited for \d+ of 32", outcome.error)
        assert "is gone" in str(run_pull(consumer, producer.pull_of(ALL, pull_id=2)).error)
    if ways == "tcp":
        replace_and_freeze(consumer)


def replace_and_freeze(consumer: Worker) -> None:
    """A producer that is frozen ends its orders after a while; those that are aborted are fenced earlier."""
    with start_producer("nixl", 2, size="large") as producer:
        consumer.connector.connect(PRODUCER, producer.description)
        assert run_pull(consumer, producer.pull_of(ALL)).error == ""
        assert has_pattern(consumer, 2)
        producer.freeze()
        frozen = run_pull(consumer, producer.pull_of({0: 1}))
        assert frozen.error == "producer 'prefill-0' has sent nothing for 1 s; waited for 1 of 1 blocks"
        consumer.connector.pull(producer.pull_of({0: 1, 1: 2}))
        assert consumer.poll() == []
        assert not consumer.connector.abort(1).is_fenced
        assert not consumer.connector.abort(1).is_fenced
        started = time.monotonic()
        (aborted,) = consumer.collect(1)
        assert time.monotonic() - started >= TIMINGS.fence_s - 0.1
        assert (aborted.error, aborted.failed_block_ids) == ("it was aborted", (0, 1))


@needs_nixl
def test_a_fence_leaves_the_orders_that_were_not_aborted(site: Site) -> None:
    producer = site.worker(LARGE, num_blocks=MANY)
    connector = NixlConnector(LARGE, 1, timings=NixlTimings(fence_share=0.0))
    site.exits.callback(connector.close)
    consumer = Worker(connector, connector.allocate(MANY), site.workers)
    site.workers.append(consumer)
    connector.connect(PRODUCER, producer.connector.describe())
    connector.pull(make_pull(producer, {local: local for local in range(8)}, pull_id=1))
    connector.pull(make_pull(producer, {local: local for local in range(8, MANY)}, pull_id=2))
    assert consumer.poll() == []
    connector.abort(1)
    assert {(outcome.pull_id, outcome.error) for outcome in consumer.collect(2)} == {
        (1, "it was aborted"),
        (2, ""),
    }
    assert torch.equal(consumer.bytes[8:], producer.bytes[8:])


@needs_nixl
def test_what_pullers_say_may_come_late_and_twice() -> None:
    server = PoolServer(NixlAgent(nixl_library.load_nixl(), torch.zeros(64, dtype=torch.uint8)))
    began, ended, again = (encode_notice(one) for one in (ReadingBegan(1), ReadingEnded(1), ReadingBegan(2)))
    for messages, is_being_read in (
        ((ended, began), False),
        ((began, ended), False),
        ((again, ended, began), True),
        ((b"nonsense", again), True),
        ((encode_notice(ReadingEnded(2)), again), False),
    ):
        for message in messages:
            server.take(0.0, "decode-0", message)
        assert server.is_being_read is is_being_read
    server.take(1.0, "decode-1", began)
    server.advance(1.0)
    assert server.is_being_read
    server.advance(1.0 + FORGET_S)
    assert not server.is_being_read
    server.close()


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_library, "BUILDS", ("nixl_cu99",))
    nixl_library.load_nixl.cache_clear()
    with pytest.raises(InvalidConfigError, match=r"kv_transport is 'nixl', .*pip install 'baton\[nixl\]'"):
        NixlConnector(SMALL, 1)


def test_workers_that_encrypt_do_not_take_it() -> None:
    with pytest.raises(InvalidConfigError, match=r"'nixl', which does not encrypt; .*--no-peer-encryption"):
        NixlConnector(SMALL, 1, Listen(curve=CurveKeys.make()))
