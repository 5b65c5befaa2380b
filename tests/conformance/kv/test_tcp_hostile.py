"""Peers on the TCP transport that break its rules or do not read: refused, bounded, and alone in it."""

from __future__ import annotations

import re
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest
import torch
import zmq

from baton_kv.curve import CurveKeys, prepare_dial, protect
from baton_kv.pull_chunks import CHUNK_BYTES
from baton_kv.staging import MAX_LENT, NUM_BUFFERS
from baton_kv.tcp import TcpConnector
from baton_kv.tcp_encrypted import EncryptedConsumerConnections
from baton_kv.tcp_messages import (
    ChunkSent,
    Drop,
    Fetch,
    FetchEnded,
    Grant,
    decode_to_consumer,
    encode,
    max_frame_bytes,
)
from baton_kv.tcp_socket import TcpTimings
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

DEADLINE_S = 30.0
ARRIVED_S = 0.1
"""Messages said so long ago are all with the producer, which reads them when it is served."""
EPOCH = 1
TOKEN = "ee" * 16
TIMINGS = TcpTimings(idle_s=0.2)
KEYS = CurveKeys.make()


@pytest.fixture(params=["plain", "encrypted"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    where = Listen(curve=KEYS if way == "encrypted" else None)
    with open_site("tcp") as opened:
        monkeypatch.setattr(secrets, "token_hex", lambda num_bytes: TOKEN)
        opened.make = lambda spec, epoch: TcpConnector(spec, epoch, where, TIMINGS)
        yield opened


def serve_until(producer: Worker, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        producer.connector.wait(0.01)
        assert producer.connector.poll() == []


def tcp(worker: Worker) -> TcpConnector:
    assert isinstance(worker.connector, TcpConnector)
    return worker.connector


def frame(message: bytes, *payload: bytes) -> bytes:
    """As the plain way has it."""
    return struct.pack("!II", len(message), sum(map(len, payload))) + b"".join((message, *payload))


class PlainEnd:
    """A connection on which a test says what it wants."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._heard = bytearray()
        self._is_over = False

    def say(self, message: bytes, *payload: bytes) -> None:
        """Send as much of it as there is room for."""
        self._connection.send(frame(message, *payload))

    def has_heard(self) -> bool:
        """Return whether a whole frame has come."""
        self._take()
        return len(self._heard) >= 8 and len(self._heard) >= 8 + sum(struct.unpack_from("!II", self._heard))

    def hear(self) -> bytes:
        message_bytes, payload_bytes = struct.unpack_from("!II", self._heard)
        message = bytes(self._heard[8 : 8 + message_bytes])
        del self._heard[: 8 + message_bytes + payload_bytes]
        return message

    def is_hung_up(self) -> bool:
        self._take()
        return self._is_over

    def close(self) -> None:
        self._connection.close()

    def _take(self) -> None:
        try:
            while received := self._connection.recv(1 << 20):
                self._heard += received
            self._is_over = True
        except BlockingIOError:
            return
        except ConnectionResetError:
            self._is_over = True


class EncryptedEnd:
    """A socket on which a test says what it wants, to the peer of that name if it has many."""

    def __init__(self, zmq_socket: zmq.Socket[bytes], *name: bytes) -> None:
        self._socket = zmq_socket
        self._name = name
        self._monitor = zmq_socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def say(self, message: bytes, *payload: bytes) -> None:
        self._socket.send_multipart((*self._name, message, *payload))

    def has_heard(self) -> bool:
        return bool(self._socket.poll(0))

    def hear(self) -> bytes:
        return self._socket.recv_multipart()[0]

    def is_hung_up(self) -> bool:
        return bool(self._monitor.poll(0))

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)


End = PlainEnd | EncryptedEnd


@dataclass
class Hostile:
    """Makes ends of connections, and closes them."""

    way: str
    context: zmq.Context[zmq.Socket[bytes]]
    ends: list[End]

    def dial(self, producer: Worker) -> End:
        """A consumer."""
        address = tcp(producer).offer.address.rpartition("/")[0]
        if self.way == "plain":
            port = int(address.rpartition(":")[2])
            end: End = PlainEnd(socket.create_connection(("127.0.0.1", port)))
        else:
            dealer = self.context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.RCVHWM, 1)
            dealer.setsockopt(zmq.RCVBUF, 1 << 16)
            dealer.connect(prepare_dial(dealer, address))
            end = EncryptedEnd(dealer)
        self.ends.append(end)
        return end

    def answer(self, described: Worker, consumer: Worker) -> End:
        """Stand in for the described producer, to which the consumer connects and pulls two blocks."""
        if self.way == "plain":
            listener = socket.create_server(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        else:
            router = self.context.socket(zmq.ROUTER)
            protect(router, KEYS)
            address = KEYS.address(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        description = msgspec.msgpack.decode(described.connector.describe())
        description["offers"] = [{"transport": "tcp", "address": f"{address}/{TOKEN}"}]
        consumer.connector.connect(PRODUCER, msgspec.msgpack.encode(description))
        consumer.connector.pull(make_pull(described, {3: 0, 4: 1}))
        if self.way == "plain":
            with listener:
                end: End = PlainEnd(listener.accept()[0])
            serve_until(consumer, end.has_heard)
            end.hear()
        else:
            assert router.poll(1000 * DEADLINE_S)
            end = EncryptedEnd(router, router.recv_multipart()[0])
        self.ends.append(end)
        return end


@pytest.fixture
def hostile(way: str) -> Iterator[Hostile]:
    with zmq.Context() as context:
        made = Hostile(way, context, [])
        yield made
        for end in made.ends:
            end.close()


def hear(end: End, producer: Worker) -> ChunkSent | FetchEnded:
    serve_until(producer, end.has_heard)
    return decode_to_consumer(end.hear())


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
        *(
            (
                Fetch(1, TOKEN, EPOCH, BLOCKS, 1, ranges),
                f"ranges are {', '.join(map(str, ranges))}; "
                "allowed: up to 2048, ascending, of heads of 32 bytes within 256",
            )
            for ranges in (((0, 288),), ((32, 64), (0, 32)), ((32, 32),), ((0, 1),), ((64, 32),))
        ),
        (
            Fetch(1, "guess", EPOCH, BLOCKS, 1),
            "token is not that of this pool; allowed: the one in its description",
        ),
        (Grant(1, 1), "it is not open"),
        (Drop(1), "dropped"),
    ],
)
def test_a_puller_that_asks_for_what_is_not_there_is_told_why(
    site: Site, hostile: Hostile, message: Fetch | Grant | Drop, reason: str
) -> None:
    producer = site.worker()
    consumer = hostile.dial(producer)
    consumer.say(encode(message))
    assert hear(consumer, producer) == FetchEnded(1, reason)


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
    site: Site, hostile: Hostile, frames: tuple[bytes, ...]
) -> None:
    producer = site.worker()
    consumer = hostile.dial(producer)
    before = producer.bytes.clone()
    consumer.say(*frames)
    if hostile.way == "plain":
        serve_until(producer, consumer.is_hung_up)
        consumer = hostile.dial(producer)
    consumer.say(encode(Fetch(7, TOKEN, EPOCH, BLOCKS, 1)))
    assert hear(consumer, producer) == ChunkSent(7, 0)
    assert torch.equal(producer.bytes, before)


def test_a_frame_larger_than_a_fetch_of_the_whole_pool_ends_the_connection(
    site: Site, hostile: Hostile
) -> None:
    producer = site.worker()
    consumer, other = hostile.dial(producer), hostile.dial(producer)
    whole = encode(Fetch(1, TOKEN, EPOCH, tuple(range(16)), 1))
    assert len(whole) <= max_frame_bytes(16)
    consumer.say(whole)
    assert hear(consumer, producer) == ChunkSent(1, 0)
    consumer.say(bytes(max_frame_bytes(16) + 1))
    serve_until(producer, consumer.is_hung_up)
    other.say(whole)
    assert hear(other, producer) == ChunkSent(1, 0)


def test_a_puller_gets_no_more_chunks_than_it_granted(site: Site, hostile: Hostile) -> None:
    producer = site.worker(LARGE)
    consumer = hostile.dial(producer)
    consumer.say(encode(Fetch(1, TOKEN, EPOCH, tuple(range(16)), 1)))
    assert hear(consumer, producer) == ChunkSent(1, 0)
    assert hear(consumer, producer) == FetchEnded(1, "no chunk was taken for 0.2 s")
    consumer.say(encode(Fetch(2, TOKEN, EPOCH, tuple(range(16)), 1)))
    consumer.say(encode(Grant(2, 4)))
    time.sleep(ARRIVED_S)
    assert hear(consumer, producer) == FetchEnded(
        2, "number of chunks granted is 5; allowed: at most 4 at a time"
    )


def test_pullers_that_do_not_read_cost_bounded_memory_and_hold_up_nobody(
    site: Site, hostile: Hostile
) -> None:
    producer, healthy = site.pair(LARGE, num_blocks=MANY)
    wires = tcp(producer).connections
    staging = wires.staging if isinstance(wires, EncryptedConsumerConnections) else None
    consumers = [hostile.dial(producer) for _ in range(5)]
    most = 0
    for fetch_id in range(20):
        for consumer in consumers:
            consumer.say(encode(Fetch(fetch_id, TOKEN, EPOCH, tuple(range(MANY)), 4)))
        for _ in range(10):
            producer.connector.wait(0.005)
            assert producer.connector.poll() == []
            most = max(most, staging.num_lent if staging else 0)
    assert not staging or MAX_LENT < most < NUM_BUFFERS
    assert run_pull(healthy, make_pull(producer, {block: block for block in range(MANY)})).error == ""
    assert torch.equal(healthy.bytes, producer.bytes)
    assert not staging or staging.num_bytes <= NUM_BUFFERS * CHUNK_BYTES
    for consumer in consumers:
        consumer.close()
    hostile.ends.clear()
    if staging:
        serve_until(producer, lambda: staging.can_lend(b"another") and not staging.num_lent)


# --- producers ---


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
        ((bytes(CHUNK_BYTES + 1),), "is gone|a message has 4194305 bytes"),
    ],
)
def test_a_holder_that_sends_what_was_not_asked_for_fails_the_order_and_writes_nothing(
    site: Site, hostile: Hostile, frames: tuple[bytes, ...], error: str
) -> None:
    described, consumer = site.worker(), site.worker()
    before = consumer.bytes.clone()
    producer = hostile.answer(described, consumer)
    producer.say(*frames)
    (outcome,) = consumer.collect(1)
    assert outcome.failed_block_ids == (3, 4)
    assert re.search(error, outcome.error), outcome.error
    assert torch.equal(consumer.bytes, before)


def test_a_holder_that_lies_about_its_bytes_is_found_out(site: Site, hostile: Hostile) -> None:
    described, consumer = site.worker(), site.worker()
    producer = hostile.answer(described, consumer)
    lie = described.bytes[0].numpy().tobytes() + bytes(SMALL.block_bytes)
    producer.say(encode(ChunkSent(1, 0)), lie)
    (outcome,) = consumer.collect(1)
    assert outcome.failed_block_ids == (4,)
    assert outcome.error == "checksum of 1 of 2 blocks does not match"
