"""Peers on the TCP transport that break its rules or do not read: refused, bounded, and alone in it."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch
import zmq

from baton_kv.chunks import CHUNK_BYTES
from baton_kv.staging import MAX_LENT, NUM_BUFFERS
from baton_kv.tcp import TcpConnector
from baton_kv.tcp_messages import (
    ChunkSent,
    Drop,
    Fetch,
    FetchEnded,
    Grant,
    decode_to_puller,
    encode,
    max_frame_bytes,
)
from baton_kv.tcp_socket import TcpTimings
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

OpenSocket = Callable[[int], zmq.Socket[bytes]]
"""Opens a socket that is closed after the test."""
DEADLINE_S = 10.0
EPOCH = 1
TOKEN = "ee" * 16


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with open_site("tcp") as opened:
        monkeypatch.setattr(secrets, "token_hex", lambda num_bytes: TOKEN)
        opened.make = lambda spec, epoch: TcpConnector(spec, epoch, timings=TcpTimings(idle_s=0.2))
        yield opened


@pytest.fixture
def open_socket() -> Iterator[OpenSocket]:
    sockets: list[zmq.Socket[bytes]] = []
    with zmq.Context() as context:

        def open_one(kind: int) -> zmq.Socket[bytes]:
            sockets.append(context.socket(kind))
            return sockets[-1]

        yield open_one
        context.destroy(linger=0)


def serve_until(holder: Worker, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        holder.connector.wait(0.01)
        assert holder.connector.poll() == []


def tcp(worker: Worker) -> TcpConnector:
    assert isinstance(worker.connector, TcpConnector)
    return worker.connector


class Puller:
    """A puller that says what a test wants."""

    def __init__(self, open_socket: OpenSocket, holder: Worker) -> None:
        self.holder = holder
        self.socket = open_socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVHWM, 1)
        self.socket.setsockopt(zmq.RCVBUF, 1 << 16)
        self.socket.connect(tcp(holder).offer.address.rpartition("/")[0])

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def hear(self) -> ChunkSent | FetchEnded:
        serve_until(self.holder, lambda: bool(self.socket.poll(0)))
        return decode_to_puller(self.socket.recv_multipart()[0])


BLOCKS = tuple(range(4))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Fetch(1, TOKEN, EPOCH + 1, BLOCKS, 1), "epoch is 2; allowed: that of the worker which runs now"),
        (Fetch(1, TOKEN, EPOCH, (0, 16), 1), "block_id is 16; allowed: 0 to 15"),
        (Fetch(1, TOKEN, EPOCH, (-1,), 1), "block_id is -1; allowed: 0 to 15"),
        (Fetch(1, TOKEN, EPOCH, (2**63,), 1), "block_id is 9223372036854775808; allowed: 0 to 15"),
        (Fetch(1, TOKEN, EPOCH, (), 1), "number of blocks is 0; allowed: 1 to 16"),
        (Fetch(1, TOKEN, EPOCH, (0,) * 17, 1), "number of blocks is 17; allowed: 1 to 16"),
        (
            Fetch(1, "guess", EPOCH, BLOCKS, 1),
            "token is not that of this pool; allowed: the one in its description",
        ),
        (Grant(1, 1), "it is not open"),
        (Drop(1), "dropped"),
    ],
)
def test_a_puller_that_asks_for_what_is_not_there_is_told_why(
    site: Site, open_socket: OpenSocket, message: Fetch | Grant | Drop, reason: str
) -> None:
    puller = Puller(open_socket, site.worker())
    puller.say(encode(message))
    assert puller.hear() == FetchEnded(1, reason)


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"\xc1nonsense",),
        (b"\xff" * 1000,),
        (encode(["Fetch", 1, TOKEN, EPOCH, [0], 0]),),
        (encode(["Fetch", 1, TOKEN, EPOCH, [0], 5]),),
        (encode(["Fetch", -1, TOKEN, EPOCH, [0], 1]),),
        (encode(["Fetch", 1, TOKEN, EPOCH, ["a"], 1]),),
        (encode(["ChunkSent", 1, 0]),),
        (encode(["Ask", 1]),),
        (encode(Fetch(1, TOKEN, EPOCH, BLOCKS, 1)), b"more"),
    ],
)
def test_what_is_no_message_is_dropped_and_the_next_one_served(
    site: Site, open_socket: OpenSocket, frames: tuple[bytes, ...]
) -> None:
    puller = Puller(open_socket, site.worker())
    before = puller.holder.bytes.clone()
    puller.say(*frames)
    puller.say(encode(Fetch(7, TOKEN, EPOCH, BLOCKS, 1)))
    assert puller.hear() == ChunkSent(7, 0)
    assert torch.equal(puller.holder.bytes, before)


def test_a_frame_larger_than_a_fetch_of_the_whole_pool_ends_the_connection(
    site: Site, open_socket: OpenSocket
) -> None:
    holder = site.worker()
    puller, other = Puller(open_socket, holder), Puller(open_socket, holder)
    monitor = puller.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    whole = encode(Fetch(1, TOKEN, EPOCH, tuple(range(16)), 1))
    assert len(whole) <= max_frame_bytes(16)
    puller.say(whole)
    assert puller.hear() == ChunkSent(1, 0)
    puller.say(bytes(max_frame_bytes(16) + 1))
    assert monitor.poll(1000 * DEADLINE_S)
    puller.socket.disable_monitor()
    monitor.close()
    other.say(whole)
    assert other.hear() == ChunkSent(1, 0)


def test_a_puller_gets_no_more_chunks_than_it_granted(site: Site, open_socket: OpenSocket) -> None:
    puller = Puller(open_socket, site.worker(LARGE))
    puller.say(encode(Fetch(1, TOKEN, EPOCH, tuple(range(16)), 1)))
    assert puller.hear() == ChunkSent(1, 0)
    assert puller.hear() == FetchEnded(1, "no chunk was taken for 0.2 s")
    puller.say(encode(Fetch(2, TOKEN, EPOCH, tuple(range(16)), 1)))
    puller.say(encode(Grant(2, 4)))
    assert puller.hear() == FetchEnded(2, "number of chunks granted is 5; allowed: at most 4 at a time")


def test_pullers_that_do_not_read_cost_bounded_memory_and_hold_up_nobody(
    site: Site, open_socket: OpenSocket
) -> None:
    holder, healthy = site.pair(LARGE, num_blocks=MANY)
    staging = tcp(holder).staging
    pullers = [Puller(open_socket, holder) for _ in range(6)]
    most = 0
    for fetch_id in range(20):
        for puller in pullers:
            puller.say(encode(Fetch(fetch_id, TOKEN, EPOCH, tuple(range(MANY)), 4)))
        for _ in range(10):
            holder.connector.wait(0.005)
            assert holder.connector.poll() == []
            most = max(most, staging.num_lent)
    assert MAX_LENT < most < NUM_BUFFERS
    assert staging.num_bytes <= NUM_BUFFERS * CHUNK_BYTES
    assert run_pull(healthy, make_order(holder, {block: block for block in range(MANY)})).error is None
    assert torch.equal(healthy.bytes, holder.bytes)
    assert staging.num_bytes <= NUM_BUFFERS * CHUNK_BYTES
    for puller in pullers:
        puller.socket.close(linger=0)
    serve_until(holder, lambda: staging.can_lend(b"another") and not staging.num_lent)


# --- holders ---


class Holder:
    """A holder that says what a test wants."""

    def __init__(self, open_socket: OpenSocket, described: Worker) -> None:
        self.socket = open_socket(zmq.ROUTER)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        description = msgspec.msgpack.decode(described.connector.describe())
        description["offers"] = [{"transport": "tcp", "address": f"tcp://127.0.0.1:{port}/{TOKEN}"}]
        self.description = msgspec.msgpack.encode(description)


CHUNK = bytes(2 * SMALL.block_bytes)


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ((b"\xc1",), "does not keep to the protocol"),
        ((encode(["Drop", 1]),), "does not keep to the protocol"),
        ((encode(ChunkSent(1, 0)),), "does not keep to the protocol"),
        ((encode(ChunkSent(1, 0)), CHUNK, CHUNK), "does not keep to the protocol"),
        ((encode(ChunkSent(1, 1)), CHUNK), r"fetch_id=1, number=1\) was not asked for"),
        ((encode(ChunkSent(2, 0)), CHUNK), r"fetch_id=2, number=0\) was not asked for"),
        ((encode(ChunkSent(1, 0)), CHUNK[1:]), "has 511 bytes; allowed: 512"),
        ((encode(ChunkSent(1, 0)), CHUNK * 2), "has 1024 bytes; allowed: 512"),
        ((encode(FetchEnded(1, "no")),), "refused: no"),
        ((bytes(CHUNK_BYTES + 1),), "is gone"),
    ],
)
def test_a_holder_that_sends_what_was_not_asked_for_fails_the_order_and_writes_nothing(
    site: Site, open_socket: OpenSocket, frames: tuple[bytes, ...], error: str
) -> None:
    described, puller = site.worker(), site.worker()
    before = puller.bytes.clone()
    holder = Holder(open_socket, described)
    puller.connector.connect(HOLDER, holder.description)
    puller.connector.pull(make_order(described, {3: 0, 4: 1}))
    assert holder.socket.poll(1000 * DEADLINE_S)
    name, _ = holder.socket.recv_multipart()
    holder.socket.send_multipart([name, *frames])
    (outcome,) = puller.collect(1)
    assert outcome.failed == (3, 4)
    assert re.search(error, str(outcome.error)), outcome.error
    assert torch.equal(puller.bytes, before)


def test_a_holder_that_lies_about_its_bytes_is_found_out(site: Site, open_socket: OpenSocket) -> None:
    described, puller = site.worker(), site.worker()
    holder = Holder(open_socket, described)
    puller.connector.connect(HOLDER, holder.description)
    puller.connector.pull(make_order(described, {3: 0, 4: 1}))
    assert holder.socket.poll(1000 * DEADLINE_S)
    name, _ = holder.socket.recv_multipart()
    lie = described.bytes[0].numpy().tobytes() + bytes(SMALL.block_bytes)
    holder.socket.send_multipart([name, encode(ChunkSent(1, 0)), lie])
    (outcome,) = puller.collect(1)
    assert outcome.failed == (4,)
    assert outcome.error == "checksum of 1 of 2 blocks does not match"
