"""TCP alone ends the orders of producers that are lost, silent or replaced, and no others."""

from __future__ import annotations

import errno
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
import zmq

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.worker_events import PullDone
from baton_kv import tcp_plain
from baton_kv.connector import ProducerUnreachableError
from baton_kv.curve import CurveKeys
from baton_kv.pull_chunks import CHUNK_BYTES
from baton_kv.tcp import TcpConnector
from baton_kv.tcp_named import Lookups, NamedProducerConnection
from baton_kv.tcp_socket import TcpTimings
from baton_kv.transfer_thread import TransferThread
from baton_kv.transport import Listen
from tests.conformance.kv.pairs import (
    LARGE,
    MANY,
    PRODUCER,
    SMALL,
    Site,
    Worker,
    make_pull,
    open_site,
    run_pull,
)
from tests.conformance.kv.processes import start_producer
from tests.conformance.kv.producer_process import pattern
from tests.ipv6 import needs_ipv6

TIMINGS = TcpTimings(heartbeat_s=0.1, lost_s=0.5, silence_s=0.7, idle_s=0.3)
HUGE = KVSpec(num_layers=5, num_kv_heads=8, head_dim=64, block_size=512, dtype="float32")
"""Blocks of 10 MiB: two and a half chunks."""
SLOW = "t"
"""A host's name that the endpoint's scheme has in it."""
PATIENT = TcpTimings(lost_s=15.0, silence_s=15.0)


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site("tcp") as opened:
        opened.make = lambda spec, epoch: TcpConnector(spec, epoch, timings=TIMINGS)
        yield opened


def address_of(producer: Worker) -> str:
    """Where it listens."""
    address: str = msgspec.msgpack.decode(producer.connector.describe())["offers"][0]["address"]
    return address.rpartition("/")[0]


def all_of(producer: Worker) -> dict[int, int]:
    return {block_id: block_id for block_id in range(len(producer.pool))}


@pytest.mark.parametrize("v_axes", ["HTD", "HDT"])
def test_blocks_larger_than_a_chunk_travel_in_pieces(site: Site, v_axes: str) -> None:
    assert HUGE.block_bytes == 2.5 * CHUNK_BYTES
    producer, consumer = (
        site.worker(HUGE, num_blocks=3),
        site.worker(replace(HUGE, v_axes=v_axes), num_blocks=3),
    )
    consumer.connector.connect(PRODUCER, producer.connector.describe())
    pull = make_pull(producer, {0: 2, 1: 0, 2: 1})
    producer.bytes[1, -1] ^= 1
    outcome = run_pull(consumer, pull)
    assert outcome.failed_block_ids == (2,)
    assert outcome.num_bytes == 3 * HUGE.block_bytes
    held, pulled = (worker.pool.view(torch.int32) for worker in (producer, consumer))
    for local, remote in {0: 2, 1: 0}.items():
        v = pulled[local, :, 1]
        if v_axes == "HDT":
            v = v.reshape(5, 8, 64, 512).mT
        assert torch.equal(pulled[local, :, 0], held[remote, :, 0])
        assert torch.equal(v, held[remote, :, 1])


# --- producers that go away ---


def test_an_order_to_a_holder_that_listens_no_more_fails_at_once(site: Site) -> None:
    site.make = lambda spec, epoch: TcpConnector(spec, epoch, timings=PATIENT)
    producer, consumer = site.worker(), site.worker()
    pull, description, address = (
        make_pull(producer, {0: 0}),
        producer.connector.describe(),
        address_of(producer),
    )
    producer.connector.close()
    consumer.connector.connect(PRODUCER, description)
    started = time.monotonic()
    outcome = run_pull(consumer, pull)
    assert time.monotonic() - started < PATIENT.lost_s / 3
    assert outcome.error == f"producer 'prefill-0' is gone; waited for a connection to {address}"


def test_a_holder_whose_thread_is_stuck_is_given_up_and_found_again(site: Site) -> None:
    producer, consumer = site.pair(LARGE, num_blocks=MANY)
    pull = make_pull(producer, all_of(producer))
    consumer.connector.pull(pull)
    consumer.run_until_written(0)
    producer.is_stuck = True
    (outcome,) = consumer.collect(1)
    assert outcome.failed_block_ids == tuple(range(MANY))
    waited = rf"waited for chunk [1-7] of 8 from {address_of(producer)}"
    assert re.fullmatch(rf"producer 'prefill-0' has sent nothing for 0.7 s; {waited}", outcome.error)
    producer.is_stuck = False
    assert run_pull(consumer, pull).error == ""
    assert torch.equal(consumer.bytes, producer.bytes)


def test_a_frozen_holder_fails_its_orders_and_so_does_a_killed_one(site: Site) -> None:
    consumer = site.worker()
    with start_producer("tcp") as producer:
        consumer.connector.connect(PRODUCER, producer.description)
        assert run_pull(consumer, producer.pull_of({0: 5, 1: 6, 9: 0})).error == ""
        assert torch.equal(consumer.pool[9], pattern(1, 0))
        producer.freeze()
        frozen = run_pull(consumer, producer.pull_of({0: 7}))
        producer.thaw()
        assert run_pull(consumer, producer.pull_of({0: 8})).error == ""
        producer.freeze()
        consumer.connector.pull(producer.pull_of({0: 9}))
        producer.kill()
        (killed,) = consumer.collect(1)
    for outcome, why in ((frozen, "has sent nothing for 0.7 s"), (killed, "is gone")):
        assert outcome.failed_block_ids == (0,)
        assert outcome.error.startswith(f"producer 'prefill-0' {why}; waited for chunk 1 of 1 from tcp:")
    assert frozen.seconds < 10 * TIMINGS.silence_s
    assert torch.equal(consumer.pool[0], pattern(1, 8))


def test_a_holder_that_took_anothers_place_refuses_the_orders_of_the_other(site: Site) -> None:
    old, consumer = site.pair(epoch=1)
    pull = make_pull(old, {0: 0})
    port = int(address_of(old).rpartition(":")[2])
    old.connector.close()
    new = TcpConnector(SMALL, 2, Listen(port=port))
    site.exits.callback(new.close)
    site.workers.append(Worker(new, new.allocate(4), site.workers))
    gone = run_pull(consumer, pull)  # the first order finds that the connection has ended
    refused = run_pull(consumer, pull) if "is gone" in gone.error else gone
    assert refused.failed_block_ids == (0,)
    assert refused.error == (
        "producer 'prefill-0' refused: epoch is 1; allowed: that of the worker which runs now"
    )


def test_a_port_in_use_is_refused(site: Site) -> None:
    port = int(address_of(site.worker()).rpartition(":")[2])
    connector = TcpConnector(SMALL, 1, Listen(port=port))
    site.exits.callback(connector.close)
    with pytest.raises(InvalidConfigError, match=f"'tcp://127.0.0.1:{port}', which cannot be bound"):
        connector.allocate(1)


def test_the_host_that_is_advertised_is_the_one_pullers_connect_to(site: Site) -> None:
    connector = TcpConnector(SMALL, 1, Listen(host="0.0.0.0", advertised_host="localhost"))
    site.exits.callback(connector.close)
    producer = Worker(connector, connector.allocate(2), site.workers)
    site.workers.append(producer)
    assert re.fullmatch(r"tcp://localhost:\d+", address_of(producer))
    consumer = site.worker()
    consumer.connector.connect(PRODUCER, connector.describe())
    assert run_pull(consumer, make_pull(producer, {0: 1})).error == ""


@pytest.mark.parametrize("curve", [None, CurveKeys.make()], ids=["plain", "encrypted"])
def test_a_name_that_takes_long_to_look_up_holds_up_no_other_producer(
    site: Site, monkeypatch: pytest.MonkeyPatch, curve: CurveKeys | None
) -> None:
    is_found, look_up = threading.Event(), socket.getaddrinfo

    def look_up_slowly(host: str, *arguments: Any) -> Any:
        if host == SLOW:
            assert is_found.wait(20.0)
            host = "127.0.0.1"
        return look_up(host, *arguments)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_slowly)
    site.make = lambda spec, epoch: TcpConnector(spec, epoch, timings=PATIENT)
    connector = TcpConnector(SMALL, 1, Listen(advertised_host=SLOW, curve=curve), PATIENT)
    site.exits.callback(connector.close)
    named = Worker(connector, connector.allocate(2), site.workers)
    site.workers.append(named)
    other, consumer = site.worker(), site.worker()
    consumer.connector.connect("named", connector.describe())
    consumer.connector.connect(PRODUCER, other.connector.describe())
    consumer.connector.pull(make_pull(named, {0: 1}, pull_id=2, source="named"))
    assert run_pull(consumer, make_pull(other, {1: 0})).error == ""
    is_found.set()
    (done,) = consumer.collect(1)
    assert (done.pull_id, done.error) == (2, "")
    assert torch.equal(consumer.bytes[0], named.bytes[1])


def test_a_named_endpoint_that_cannot_be_connected_to_loses_its_pulls_alone() -> None:
    def refuse(endpoint: str) -> Any:
        raise zmq.ZMQError(zmq.EINVAL)

    is_found = threading.Event()
    connection = NamedProducerConnection("tcp://localhost:1#key", Lookups(is_found.set), refuse)
    assert is_found.wait(20.0)
    with pytest.raises(ConnectionError, match="Invalid argument"):
        connection.receive(lambda message, num_bytes: ())


def test_a_pull_from_a_host_without_an_address_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look_up(host: str, *_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    connector = TcpConnector(SMALL, 1, Listen(advertised_host="no.example"), TIMINGS)
    site.exits.callback(connector.close)
    producer = Worker(connector, connector.allocate(2), site.workers)
    consumer = site.worker()
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    consumer.connector.connect(PRODUCER, connector.describe())
    error = run_pull(consumer, make_pull(producer, {0: 1})).error
    assert error == f"producer 'prefill-0' is gone; waited for a connection to {address_of(producer)}"
    assert "Name or service not known" in caplog.text


def test_encrypted_blocks_come_to_those_alone_who_know_the_key(site: Site) -> None:
    connector = TcpConnector(LARGE, 1, Listen(curve=CurveKeys.make()), TIMINGS)
    site.exits.callback(connector.close)
    producer = Worker(connector, connector.allocate(6), site.workers)
    site.workers.append(producer)
    producer.bytes.view(torch.int64).random_(generator=site.rng)
    consumer = site.worker(LARGE, num_blocks=6)
    pull = make_pull(producer, all_of(producer))
    description = msgspec.msgpack.decode(connector.describe())
    (offer,) = description["offers"]
    endpoint, _, rest = offer["address"].partition("#")
    key, _, token = rest.partition("/")
    for address in (f"{endpoint}/{token}", f"{endpoint}#{key[::-1]}/{token}"):
        offer["address"] = address
        consumer.connector.connect(PRODUCER, msgspec.msgpack.encode(description))
        error = run_pull(consumer, pull).error
        assert key not in error
        # Without a key the TCP connection may be seen before the producer ends it.
        assert re.search("; waited for (a connection to|chunk 1 of 2 from) tcp://127.0.0.1:", error)
    consumer.connector.connect(PRODUCER, connector.describe())
    assert run_pull(consumer, pull).error == ""
    assert torch.equal(consumer.bytes, producer.bytes)
    offer["address"] = f"{endpoint}#key/{token}"
    with pytest.raises(ProducerUnreachableError, match="64 hexadecimal digits"):
        consumer.connector.connect(PRODUCER, msgspec.msgpack.encode(description))


@needs_ipv6
@pytest.mark.parametrize(("host", "advertised"), [("[::1]", ""), ("[::]", "[::1]"), ("[::]", "127.0.0.1")])
def test_blocks_travel_over_ipv6_and_all_interfaces_take_ipv4_too(
    site: Site, host: str, advertised: str
) -> None:
    connector = TcpConnector(SMALL, 1, Listen(host=host, advertised_host=advertised))
    site.exits.callback(connector.close)
    producer = Worker(connector, connector.allocate(2), site.workers)
    site.workers.append(producer)
    assert address_of(producer).startswith(f"tcp://{advertised or host}:")
    consumer = site.worker()
    consumer.connector.connect(PRODUCER, connector.describe())
    assert run_pull(consumer, make_pull(producer, {0: 1})).error == ""
    assert torch.equal(consumer.bytes[0], producer.bytes[1])


# --- aborts ---


def test_late_chunks_of_an_aborted_order_are_thrown_away_and_the_next_order_gets_through(site: Site) -> None:
    producer, consumer = site.pair(LARGE, num_blocks=MANY)
    pull = make_pull(producer, all_of(producer))
    for pull_id in range(1, 6):
        consumer.connector.pull(replace(pull, pull_id=pull_id))
        consumer.run_until_written(0)
        assert consumer.connector.abort(pull_id).is_fenced
        consumer.pool.zero_()
    for _ in range(30):
        assert consumer.poll() == []
    assert not consumer.pool.any()
    assert run_pull(consumer, pull).error == ""
    assert torch.equal(consumer.bytes, producer.bytes)


def test_orders_share_one_connection_in_their_order(site: Site) -> None:
    producer, consumer = site.pair(LARGE)
    for pull_id in range(8):
        consumer.connector.pull(
            make_pull(producer, {2 * pull_id: pull_id, 2 * pull_id + 1: 15}, pull_id=pull_id)
        )
    consumer.connector.abort(3)
    assert [outcome.pull_id for outcome in consumer.collect(7)] == [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(consumer.bytes[14], producer.bytes[7])


# --- waiting ---


def test_a_wake_ends_the_wait_that_runs_and_otherwise_the_next(site: Site) -> None:
    connector = site.worker().connector
    connector.wake()
    connector.wake()
    started = time.monotonic()
    connector.wait(60.0)
    timer = threading.Timer(0.05, connector.wake)
    timer.start()
    connector.wait(60.0)
    assert time.monotonic() - started < 30.0
    timer.join()
    started = time.monotonic()
    connector.wait(0.05)
    assert time.monotonic() - started >= 0.05


class CountingConnector(TcpConnector):
    num_polls = 0

    def poll(self) -> list[PullDone]:
        self.num_polls += 1
        return super().poll()


def num_polls_within(connector: CountingConnector, seconds: float) -> int:
    before = connector.num_polls
    time.sleep(seconds)
    return connector.num_polls - before


def test_a_connection_that_finds_no_file_does_not_keep_the_thread_awake(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = site.pair()

    def accept(listener: socket.socket) -> tuple[socket.socket, str]:
        raise OSError(errno.EMFILE, "too many files")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", accept)
        assert producer.connector.poll() == []
        started = time.monotonic()
        producer.connector.wait(0.2)
        assert time.monotonic() - started > 0.1
    consumer.connector.connect(PRODUCER, producer.connector.describe())
    assert run_pull(consumer, make_pull(producer, {0: 1})).error == ""


def test_connections_that_fetch_nothing_make_room_for_those_that_do(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_plain, "MAX_CONSUMERS", 3)
    producer, earlier = site.pair()
    assert run_pull(earlier, make_pull(producer, {3: 0})).error == ""
    host, _, port = address_of(producer).removeprefix("tcp://").rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(2)]
    later = site.worker()
    later.connector.connect(PRODUCER, producer.connector.describe())
    for consumer in (later, earlier):
        assert run_pull(consumer, make_pull(producer, {4: 1}, pull_id=2)).error == ""
    assert silent[0].recv(1) == b""
    with pytest.raises(BlockingIOError):
        silent[1].recv(1, socket.MSG_DONTWAIT)
    for one in silent:
        one.close()


def test_an_idle_thread_sleeps_and_serves_its_peers_all_the_same(site: Site) -> None:
    connector = CountingConnector(SMALL, 1)
    producer = Worker(connector, connector.allocate(16), site.workers)
    producer.pool.fill_(1.5)
    pull = make_pull(producer, {0: 3})
    consumer = site.worker()
    consumer.connector.connect(PRODUCER, connector.describe())
    thread = TransferThread(connector, lambda results: None)
    thread.start()
    try:
        assert run_pull(consumer, pull).error == ""
        deadline = time.monotonic() + 30.0
        while num_polls_within(connector, 0.3) > 1:
            assert time.monotonic() < deadline, "it does not sleep"
    finally:
        thread.close(5.0)
    assert consumer.pool[0].eq(1.5).all()
