"""One gRPC connection takes a bounded part of a server, for a bounded time."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import grpc
import pytest

from baton_proto.v1 import baton_pb2
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service import grpc_options
from baton_service.keys import Keys
from bench.attack.strangers import opened_and_reset
from tests.integration.test_grpc_server import Counting, Waiting, serving

REQUEST = baton_pb2.TokenizeRequest(text="abc")


async def test_metadata_over_its_bound_is_refused_and_the_connection_goes_on() -> None:
    async with serving(Counting()) as (_, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = BatonStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(REQUEST, metadata=(("x", "y" * grpc_options.MAX_METADATA_BYTES),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Tokenize(REQUEST, metadata=(("x", "y" * 4096),))).count == 3


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\n"], ids=repr)
async def test_a_connection_that_speaks_no_grpc_is_closed(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_options, "HANDSHAKE_MS", 300)
    async with serving(Counting()) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass
        writer.close()


async def test_a_connection_without_a_call_is_closed_and_one_with_a_call_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_options, "IDLE_MS", 300)
    waiting = Waiting()
    async with serving(waiting) as (_, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        events = BatonStub(channel).Generate(baton_pb2.GenerateRequest())
        assert await events.read() == baton_pb2.GenerateEvent()
        await asyncio.sleep(0.6)
        waiting.go_on.set()
        assert await events.read() == baton_pb2.GenerateEvent()
        assert await events.read() is grpc.aio.EOF
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE


async def test_a_channel_may_have_more_than_a_thousand_calls_at_a_time() -> None:
    async with serving(Counting()) as (_, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = BatonStub(channel)
        replies = await asyncio.gather(*[stub.Tokenize(REQUEST, timeout=60) for _ in range(2500)])
        assert {reply.count for reply in replies} == {3}


@pytest.mark.parametrize("keys", [Keys(), Keys(("key",))], ids=["open", "keyed"])
async def test_calls_that_are_reset_at_once_write_no_line(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with serving(Counting(), keys=keys) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(opened_and_reset("/baton.v1.Baton/Tokenize", 300))
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(2):
                    while await reader.read(65_536):
                        pass
            writer.close()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:  # it still answers
                metadata = (("authorization", "Bearer key"),)
                assert (await BatonStub(channel).Tokenize(REQUEST, metadata=metadata, timeout=20)).count == 3
    assert caplog.messages == []
