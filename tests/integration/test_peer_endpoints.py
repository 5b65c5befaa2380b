"""The two ends of the peer channel, by themselves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import zmq.asyncio

from baton_core.sessions.peer_messages import LeaseGone, Release, ToConsumer, ToProducer
from baton_decode import consumer_endpoint
from baton_decode.consumer_endpoint import ConsumerEndpoint
from baton_kv import peer_socket
from baton_kv.curve import CurveKeys
from baton_prefill import producer_endpoint
from baton_prefill.producer_endpoint import ProducerEndpoint
from tests.ipv6 import needs_ipv6

TIMEOUT_S = 10.0
RELEASE = Release(transfer_id="t", producer_epoch=1)
GONE = LeaseGone(transfer_id="t", producer_epoch=1, reason="over")


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=needs_ipv6)])
async def test_both_ends_speak_over_either_internet_protocol(host: str, is_encrypted: bool) -> None:
    curve = CurveKeys.make() if is_encrypted else None
    with zmq.asyncio.Context() as context:
        at_producer: asyncio.Queue[tuple[bytes, ToProducer]] = asyncio.Queue()
        at_consumer: asyncio.Queue[ToConsumer] = asyncio.Queue()
        producer = ProducerEndpoint(context, f"tcp://{host}:0", curve)
        assert producer.address.startswith(f"tcp://{host}:")
        receiving = asyncio.create_task(producer.receive(lambda *heard: at_producer.put_nowait(heard)))
        consumer = ConsumerEndpoint(context, "decode-1", at_consumer.put_nowait)
        address = curve.address(producer.address) if curve else producer.address
        if curve:  # who is not told the key is not heard
            stranger = ConsumerEndpoint(context, "stranger", at_consumer.put_nowait)
            for wrong in (producer.address, CurveKeys.make().address(producer.address)):
                stranger.send(wrong, RELEASE)
        consumer.send(address, RELEASE)
        assert await asyncio.wait_for(at_producer.get(), TIMEOUT_S) == (b"decode-1", RELEASE)
        producer.send(b"decode-1", GONE)
        assert await asyncio.wait_for(at_consumer.get(), TIMEOUT_S) == GONE
        if curve:
            await asyncio.sleep(0.1)
            assert at_producer.empty()
            await stranger.close()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await consumer.close()
        producer.close()


async def test_a_connection_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_endpoint, "HANDSHAKE_MS", 300)
    with zmq.asyncio.Context() as context:
        producer = ProducerEndpoint(context, "tcp://127.0.0.1:0")
        port = int(producer.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(reader.read(100), TIMEOUT_S):
                pass
        writer.close()
        producer.close()


class _Path:
    """A way between two ends that can forget the connections that it carries."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pumps: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.StreamWriter] = []
        self._producers: list[asyncio.StreamWriter] = []

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, to_producer = await asyncio.open_connection("127.0.0.1", self._port)
        self._consumers.append(writer)
        self._producers.append(to_producer)
        for one, other in ((reader, to_producer), (onward, writer)):
            self._pumps.append(asyncio.create_task(self._pump(one, other)))

    def forget(self, *, tells_consumers: bool) -> None:
        """Carry no byte more of the connections; the producer's ends stay as they are."""
        for pump in self._pumps:
            pump.cancel()
        if tells_consumers:
            for writer in self._consumers:
                writer.close()

    async def close(self) -> None:
        self.forget(tells_consumers=True)
        for writer in self._producers:
            writer.close()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)


@pytest.mark.parametrize("tells_consumers", [True, False])
async def test_a_connection_that_is_lost_on_one_side_is_replaced(
    tells_consumers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the consumer is told, no heartbeat comes in time to help.
    monkeypatch.setattr(peer_socket, "INTERVAL_MS", 60_000 if tells_consumers else 200)
    monkeypatch.setattr(peer_socket, "TIMEOUT_MS", 400)
    with zmq.asyncio.Context() as context:
        answers: asyncio.Queue[ToConsumer] = asyncio.Queue()
        producer = ProducerEndpoint(context, "tcp://127.0.0.1:0")
        receiving = asyncio.create_task(producer.receive(lambda name, _: producer.send(name, GONE)))
        path = _Path(int(producer.address.rpartition(":")[2]))
        server = await asyncio.start_server(path.carry, "127.0.0.1", 0)
        consumer = ConsumerEndpoint(context, "decode-1", answers.put_nowait)
        address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        consumer.send(address, RELEASE)
        assert await asyncio.wait_for(answers.get(), TIMEOUT_S) == GONE
        path.forget(tells_consumers=tells_consumers)
        async with asyncio.timeout(TIMEOUT_S):
            while answers.empty():
                consumer.send(address, RELEASE)
                await asyncio.sleep(0.1)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await consumer.close()
        producer.close()
        server.close()
        await path.close()


@pytest.mark.parametrize("address", ["", "garbage", "tcp://1.2.3.4", "tcp://no such host:1", "tcp://h:1#zz"])
async def test_a_message_to_what_is_no_address_is_lost(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with zmq.asyncio.Context() as context:
        consumer = ConsumerEndpoint(context, "decode-1", print)
        consumer.send(address, RELEASE)
        assert consumer.addresses == []
        await consumer.close()
    assert f"lost a Release: no way to a producer at {address!r} (" in caplog.text


async def test_a_long_name_is_shortened_to_its_end() -> None:
    with zmq.asyncio.Context() as context:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        producer = ProducerEndpoint(context, "tcp://127.0.0.1:0")
        receiving = asyncio.create_task(producer.receive(lambda name, _: heard.put_nowait(name)))
        name = f"{'漢' * 128}-17f0a0a0a0a0a0a0"
        consumer = ConsumerEndpoint(context, name, print)
        consumer.send(producer.address, RELEASE)
        assert await asyncio.wait_for(heard.get(), TIMEOUT_S) == name.encode()[-255:]
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await consumer.close()
        producer.close()


async def test_a_socket_that_is_not_used_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_endpoint, "IDLE_S", 0.2)
    with zmq.asyncio.Context() as context:
        consumer = ConsumerEndpoint(context, "decode-1", print)
        for port in (1, 2):
            consumer.send(f"tcp://127.0.0.1:{port}", RELEASE)
        await asyncio.sleep(0.1)
        consumer.send("tcp://127.0.0.1:2", RELEASE)
        await asyncio.sleep(0.15)
        consumer.send("tcp://127.0.0.1:3", RELEASE)
        assert consumer.addresses == ["tcp://127.0.0.1:2", "tcp://127.0.0.1:3"]
        await consumer.close()


async def test_a_producer_with_other_keys_replaces_the_one_at_its_address() -> None:
    with zmq.asyncio.Context() as context:
        consumer = ConsumerEndpoint(context, "decode-1", print)
        addresses = [CurveKeys.make().address("tcp://127.0.0.1:1") for _ in range(2)]
        for address in addresses:
            consumer.send(address, RELEASE)
        assert consumer.addresses == addresses[1:]
        await consumer.close()


async def test_a_message_that_fails_does_not_end_the_channel() -> None:
    with zmq.asyncio.Context() as context:
        heard = asyncio.Event()

        def fail(message: ToConsumer) -> None:
            heard.set()
            raise RuntimeError(str(message))

        def answer_and_fail(name: bytes, message: ToProducer) -> None:
            producer.send(name, GONE)
            raise RuntimeError(str(message))

        producer = ProducerEndpoint(context, "tcp://127.0.0.1:0")
        receiving = asyncio.create_task(producer.receive(answer_and_fail))
        consumer = ConsumerEndpoint(context, "decode-1", fail)
        for _ in range(2):
            heard.clear()
            consumer.send(producer.address, RELEASE)
            await asyncio.wait_for(heard.wait(), TIMEOUT_S)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await consumer.close()
        producer.close()
