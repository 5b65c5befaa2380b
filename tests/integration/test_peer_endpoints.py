"""The two ends of the peer channel, by themselves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import zmq.asyncio

from baton_core.sessions.peer_messages import LeaseGone, Release, ToConsumer, ToProducer
from baton_decode.consumer_endpoint import ConsumerEndpoint
from baton_kv.curve import CurveKeys
from baton_prefill import producer_endpoint
from baton_prefill.producer_endpoint import ProducerEndpoint
from tests.ipv6 import needs_ipv6

TIMEOUT_S = 10.0


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=needs_ipv6)])
def test_both_ends_speak_over_either_internet_protocol(host: str, is_encrypted: bool) -> None:
    curve = CurveKeys.make() if is_encrypted else None
    release = Release(transfer_id="t", producer_epoch=1)
    gone = LeaseGone(transfer_id="t", producer_epoch=1, reason="over")

    async def scenario() -> None:
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
                    stranger.send(wrong, release)
            consumer.send(address, release)
            assert await asyncio.wait_for(at_producer.get(), TIMEOUT_S) == (b"decode-1", release)
            producer.send(b"decode-1", gone)
            assert await asyncio.wait_for(at_consumer.get(), TIMEOUT_S) == gone
            if curve:
                await asyncio.sleep(0.1)
                assert at_producer.empty()
                await stranger.close()
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            await consumer.close()
            producer.close()

    asyncio.run(scenario())


def test_a_connection_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_endpoint, "HANDSHAKE_MS", 300)

    async def scenario() -> None:
        with zmq.asyncio.Context() as context:
            producer = ProducerEndpoint(context, "tcp://127.0.0.1:0")
            port = int(producer.address.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(100), TIMEOUT_S):
                    pass
            writer.close()
            producer.close()

    asyncio.run(scenario())
