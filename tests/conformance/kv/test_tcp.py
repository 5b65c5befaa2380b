"""What only TCP promises: holders that are lost, silent or replaced end orders, and nothing else."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import torch

from baton_core.blocks.kv_spec import KVSpec
from baton_core.errors import InvalidConfigError
from baton_kv.chunks import CHUNK_BYTES
from baton_kv.connector import AbortResult, HolderUnreachableError, PullOutcome
from baton_kv.curve import CurveKeys
from baton_kv.tcp import TcpConnector
from baton_kv.tcp_socket import TcpTimings
from baton_kv.transfer_thread import TransferThread
from baton_kv.transport import Listen
from tests.conformance.kv.holder_process import pattern
from tests.conformance.kv.pairs import (
    HOLDER,
    LARGE,
    MANY,
    SMALL,
    Site,
    Worker,
    make_order,
    open_site,
    run_pull,
)
from tests.conformance.kv.processes import start_holder
from tests.ipv6 import needs_ipv6

TIMINGS = TcpTimings(heartbeat_s=0.1, lost_s=0.5, silence_s=0.7, idle_s=0.3)
HUGE = KVSpec(num_layers=5, num_kv_heads=8, head_dim=64, block_size=512, dtype="float32")
"""Blocks of 10 MiB: two and a half chunks."""
PATIENT = TcpTimings(lost_s=15.0, silence_s=15.0)


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site("tcp") as opened:
        opened.make = lambda spec, epoch: TcpConnector(spec, epoch, timings=TIMINGS)
        yield opened


def address_of(holder: Worker) -> str:
    """Where it listens."""
    address: str = msgspec.msgpack.decode(holder.connector.describe())["offers"][0]["address"]
    return address.rpartition("/")[0]


def all_of(holder: Worker) -> dict[int, int]:
    return {block_id: block_id for block_id in range(len(holder.pool))}


@pytest.mark.parametrize("v_axes", ["HTD", "HDT"])
def test_blocks_larger_than_a_chunk_travel_in_pieces(site: Site, v_axes: str) -> None:
    assert HUGE.block_bytes == 2.5 * CHUNK_BYTES
    holder, puller = site.worker(HUGE, num_blocks=3), site.worker(replace(HUGE, v_axes=v_axes), num_blocks=3)
    puller.connector.connect(HOLDER, holder.connector.describe())
    order = make_order(holder, {0: 2, 1: 0, 2: 1})
    holder.bytes[1, -1] ^= 1
    outcome = run_pull(puller, order)
    assert outcome.failed == (2,)
    assert outcome.num_bytes == 3 * HUGE.block_bytes
    held, pulled = (worker.pool.view(torch.int32) for worker in (holder, puller))
    for local, remote in {0: 2, 1: 0}.items():
        v = pulled[local, :, 1]
        if v_axes == "HDT":
            v = v.reshape(5, 8, 64, 512).mT
        assert torch.equal(pulled[local, :, 0], held[remote, :, 0])
        assert torch.equal(v, held[remote, :, 1])


# --- holders that go away ---


def test_an_order_to_a_holder_that_listens_no_more_fails_at_once(site: Site) -> None:
    site.make = lambda spec, epoch: TcpConnector(spec, epoch, timings=PATIENT)
    holder, puller = site.worker(), site.worker()
    order, description, address = make_order(holder, {0: 0}), holder.connector.describe(), address_of(holder)
    holder.connector.close()
    puller.connector.connect(HOLDER, description)
    started = time.monotonic()
    outcome = run_pull(puller, order)
    assert time.monotonic() - started < PATIENT.lost_s / 3
    assert outcome.error == f"holder 'prefill-0' is gone; waited for a connection to {address}"


def test_a_holder_whose_thread_is_stuck_is_given_up_and_found_again(site: Site) -> None:
    holder, puller = site.pair(LARGE, num_blocks=MANY)
    order = make_order(holder, all_of(holder))
    puller.connector.pull(order)
    puller.run_until_written(0)
    holder.is_stuck = True
    (outcome,) = puller.collect(1)
    assert outcome.failed == tuple(range(MANY))
    waited = rf"waited for chunk [1-7] of 8 from {address_of(holder)}"
    assert re.fullmatch(rf"holder 'prefill-0' has sent nothing for 0.7 s; {waited}", str(outcome.error))
    holder.is_stuck = False
    assert run_pull(puller, order).error is None
    assert torch.equal(puller.bytes, holder.bytes)


def test_a_frozen_holder_fails_its_orders_and_so_does_a_killed_one(site: Site) -> None:
    puller = site.worker()
    with start_holder("tcp") as holder:
        puller.connector.connect(HOLDER, holder.description)
        assert run_pull(puller, holder.order({0: 5, 1: 6, 9: 0})).error is None
        assert torch.equal(puller.pool[9], pattern(1, 0))
        holder.freeze()
        frozen = run_pull(puller, holder.order({0: 7}))
        holder.thaw()
        assert run_pull(puller, holder.order({0: 8})).error is None
        holder.freeze()
        puller.connector.pull(holder.order({0: 9}))
        holder.kill()
        (killed,) = puller.collect(1)
    for outcome, why in ((frozen, "has sent nothing for 0.7 s"), (killed, "is gone")):
        assert outcome.failed == (0,)
        assert str(outcome.error).startswith(f"holder 'prefill-0' {why}; waited for chunk 1 of 1 from tcp:")
    assert frozen.seconds < 10 * TIMINGS.silence_s
    assert torch.equal(puller.pool[0], pattern(1, 8))


def test_a_holder_that_took_anothers_place_refuses_the_orders_of_the_other(site: Site) -> None:
    old, puller = site.pair(epoch=1)
    order = make_order(old, {0: 0})
    port = int(address_of(old).rpartition(":")[2])
    old.connector.close()
    new = TcpConnector(SMALL, 2, Listen(port=port))
    site.exits.callback(new.close)
    site.workers.append(Worker(new, new.allocate(4), site.workers))
    gone = run_pull(puller, order)  # the first order finds that the connection has ended
    refused = run_pull(puller, order) if "is gone" in str(gone.error) else gone
    assert refused.failed == (0,)
    assert refused.error == (
        "holder 'prefill-0' refused: epoch is 1; allowed: that of the worker which runs now"
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
    holder = Worker(connector, connector.allocate(2), site.workers)
    site.workers.append(holder)
    assert re.fullmatch(r"tcp://localhost:\d+", address_of(holder))
    puller = site.worker()
    puller.connector.connect(HOLDER, connector.describe())
    assert run_pull(puller, make_order(holder, {0: 1})).error is None


def test_encrypted_blocks_come_to_those_alone_who_know_the_key(site: Site) -> None:
    connector = TcpConnector(LARGE, 1, Listen(curve=CurveKeys.make()), TIMINGS)
    site.exits.callback(connector.close)
    holder = Worker(connector, connector.allocate(6), site.workers)
    site.workers.append(holder)
    holder.bytes.view(torch.int64).random_(generator=site.rng)
    puller = site.worker(LARGE, num_blocks=6)
    order = make_order(holder, all_of(holder))
    description = msgspec.msgpack.decode(connector.describe())
    (offer,) = description["offers"]
    endpoint, _, rest = offer["address"].partition("#")
    key, _, token = rest.partition("/")
    for address in (f"{endpoint}/{token}", f"{endpoint}#{key[::-1]}/{token}"):
        offer["address"] = address
        puller.connector.connect(HOLDER, msgspec.msgpack.encode(description))
        error = run_pull(puller, order).error
        assert error is not None
        assert key not in error
        assert "waited for a connection to tcp://127.0.0.1:" in error
    puller.connector.connect(HOLDER, connector.describe())
    assert run_pull(puller, order).error is None
    assert torch.equal(puller.bytes, holder.bytes)
    offer["address"] = f"{endpoint}#key/{token}"
    with pytest.raises(HolderUnreachableError, match="64 hexadecimal digits"):
        puller.connector.connect(HOLDER, msgspec.msgpack.encode(description))


@needs_ipv6
@pytest.mark.parametrize(("host", "advertised"), [("[::1]", ""), ("[::]", "[::1]"), ("[::]", "127.0.0.1")])
def test_blocks_travel_over_ipv6_and_all_interfaces_take_ipv4_too(
    site: Site, host: str, advertised: str
) -> None:
    connector = TcpConnector(SMALL, 1, Listen(host=host, advertised_host=advertised))
    site.exits.callback(connector.close)
    holder = Worker(connector, connector.allocate(2), site.workers)
    site.workers.append(holder)
    assert address_of(holder).startswith(f"tcp://{advertised or host}:")
    puller = site.worker()
    puller.connector.connect(HOLDER, connector.describe())
    assert run_pull(puller, make_order(holder, {0: 1})).error is None
    assert torch.equal(puller.bytes[0], holder.bytes[1])


# --- aborts ---


def test_late_chunks_of_an_aborted_order_are_thrown_away_and_the_next_order_gets_through(site: Site) -> None:
    holder, puller = site.pair(LARGE, num_blocks=MANY)
    order = make_order(holder, all_of(holder))
    for pull_id in range(1, 6):
        puller.connector.pull(replace(order, pull_id=pull_id))
        puller.run_until_written(0)
        assert puller.connector.abort(pull_id) is AbortResult.FENCED
        puller.pool.zero_()
    for _ in range(30):
        assert puller.poll() == []
    assert not puller.pool.any()
    assert run_pull(puller, order).error is None
    assert torch.equal(puller.bytes, holder.bytes)


def test_orders_share_one_connection_in_their_order(site: Site) -> None:
    holder, puller = site.pair(LARGE)
    for pull_id in range(8):
        puller.connector.pull(
            make_order(holder, {2 * pull_id: pull_id, 2 * pull_id + 1: 15}, pull_id=pull_id)
        )
    puller.connector.abort(3)
    assert [outcome.pull_id for outcome in puller.collect(7)] == [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(puller.bytes[14], holder.bytes[7])


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

    def poll(self) -> list[PullOutcome]:
        self.num_polls += 1
        return super().poll()


def num_polls_within(connector: CountingConnector, seconds: float) -> int:
    before = connector.num_polls
    time.sleep(seconds)
    return connector.num_polls - before


def test_an_idle_thread_sleeps_and_serves_its_peers_all_the_same(site: Site) -> None:
    connector = CountingConnector(SMALL, 1)
    holder = Worker(connector, connector.allocate(16), site.workers)
    holder.pool.fill_(1.5)
    order = make_order(holder, {0: 3})
    puller = site.worker()
    puller.connector.connect(HOLDER, connector.describe())
    thread = TransferThread(connector, lambda results: None)
    thread.start()
    try:
        assert run_pull(puller, order).error is None
        deadline = time.monotonic() + 30.0
        while num_polls_within(connector, 0.3) > 1:
            assert time.monotonic() < deadline, "it does not sleep"
    finally:
        thread.close(5.0)
    assert puller.pool[0].eq(1.5).all()
