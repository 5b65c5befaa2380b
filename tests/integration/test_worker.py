"""Whole workers between a real router and a real client, while a step, a transfer or a peer misbehaves."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import zmq
import zmq.asyncio

from baton import LLM, CompletionOutput, SamplingParams
from baton_core.sessions.peer_messages import (
    BlocksReady,
    LeaseGone,
    Release,
    Subscribe,
    decode_peer,
    encode_peer,
)
from baton_core.sessions.router_messages import FirstToken, Reserved, Transferred
from baton_core.sessions.worker_info import Role
from baton_decode.consumer_endpoint import ConsumerEndpoint
from baton_kv.peer_socket import MAX_MESSAGE_BYTES
from baton_proto.v1 import baton_pb2 as pb
from tests.conformance.kv.delaying import DelayingConnector
from tests.e2e.calls import answer, draw_prompt, greedy
from tests.integration.router_cluster import MODEL
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import Gate, Said, routing, working

ANSWERED_WITHIN_S = 20.0
"""Limit of an answer while a step is held, which may be forever."""
HEARD_WITHIN_S = ANSWERED_WITHIN_S + 0.5
"""A heartbeat's report comes up to its period later."""
LONG = greedy(300)
"""A request that goes on while another begins."""
MALFORMED = (
    [b""],
    [b"\xff\xff\xff"],
    [b"one", b"two", b"three"],
    [b"\x93\xa9Subscribe"],
    [b"x" * (MAX_MESSAGE_BYTES // 2)],
    [encode_peer(Release(transfer_id="t" * 4097, producer_epoch=1))],
)


@pytest.fixture(scope="module")
def llm() -> LLM:
    """Everything in this thread: the oracle."""
    return LLM(str(MODEL), dtype="float32")


async def read(call: Any, num_events: int) -> list[pb.GenerateEvent]:
    return [await call.read() for _ in range(num_events)]


async def rest(call: Any, begin: list[pb.GenerateEvent]) -> list[CompletionOutput]:
    """Read to the end; the outputs of the whole stream."""
    events = list(begin)
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    return answer(events)[0]


def expect(llm: LLM, prompt: list[int], params: SamplingParams) -> list[CompletionOutput]:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs


async def test_a_decode_worker_answers_while_a_step_runs(llm: LLM, said: Said) -> None:
    running, late = draw_prompt(40, seed=1), draw_prompt(70, seed=2)
    gate = Gate()
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port),
        working(Role.DECODE, cluster.port, gate=gate),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        gate.let_through(2)
        first = cluster.ask("running", running, greedy(30))
        begin = await read(first, 3)
        await until(lambda: gate.is_holding)
        said.loads.clear()
        await until(lambda: "decode" in said.loads, HEARD_WITHIN_S)
        num_blocks = said.num_blocks("decode")
        cancelled = cluster.ask("cancelled", late, greedy(30))
        await until(lambda: said.has(Reserved, "cancelled"), ANSWERED_WITHIN_S)
        await until(lambda: said.has(FirstToken, "cancelled"), ANSWERED_WITHIN_S)
        await until(lambda: said.num_blocks("decode") == num_blocks - 3, HEARD_WITHIN_S)
        cancelled.cancel()
        await until(lambda: said.num_blocks("decode") == num_blocks, HEARD_WITHIN_S)
        kept = cluster.ask("kept", late, greedy(30))
        await until(lambda: said.has(Transferred, "kept"), ANSWERED_WITHIN_S)
        kept_begin = await read(kept, 1)
        assert gate.is_holding
        gate.open()
        assert await rest(first, begin) == expect(llm, running, greedy(30))
        assert await rest(kept, kept_begin) == expect(llm, late, greedy(30))
        await cluster.wait_for_idle("prefill", "decode")


async def test_a_cancelled_sequence_leaves_the_step_that_it_is_in(llm: LLM, said: Said) -> None:
    """Its blocks are written by the step, and free after it."""
    prompt, other = draw_prompt(40, seed=3), draw_prompt(50, seed=4)
    gate = Gate()
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port),
        working(Role.DECODE, cluster.port, gate=gate),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        gate.close()
        gone, stays = (cluster.ask(f"r{n}", p, LONG) for n, p in enumerate((prompt, other)))
        reading = asyncio.gather(read(gone, 3), read(stays, 3))
        while not reading.done():
            await until(lambda: gate.is_holding or reading.done())
            gate.let_through(1)
        _, begin = await reading
        await until(lambda: gate.is_holding)
        gone.cancel()
        kept = cluster.ask("after", other, greedy(1))
        assert (await rest(kept, []))[0].token_ids == list(begin[0].tokens.token_ids)
        assert gate.is_holding
        gate.open()
        assert await rest(stays, begin) == expect(llm, other, LONG)
        await cluster.wait_for_idle("prefill", "decode")


async def test_a_prefill_worker_drops_a_prompt_that_is_cancelled_in_mid_step(said: Said) -> None:
    gate = Gate()
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port, gate=gate, max_num_batched_tokens=32),
        working(Role.DECODE, cluster.port),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        num_blocks = said.num_blocks("decode")
        gate.close()
        call = cluster.ask("gone", draw_prompt(200, seed=5), greedy(5))
        await until(lambda: gate.is_holding and said.has(Reserved, "gone"), ANSWERED_WITHIN_S)
        await until(lambda: said.num_blocks("decode") == num_blocks - 7, HEARD_WITHIN_S)
        call.cancel()
        await until(lambda: said.num_blocks("decode") == num_blocks, HEARD_WITHIN_S)
        assert gate.is_holding
        gate.open()
        await cluster.wait_for_idle("prefill", "decode")
        assert not said.has(FirstToken, "gone")


async def test_the_first_token_does_not_wait_for_the_transfer(llm: LLM, said: Said) -> None:
    prompt, params = draw_prompt(300, seed=6), SamplingParams(n=2, seed=3, max_tokens=12, ignore_eos=True)
    may_pull = threading.Event()
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port),
        working(Role.DECODE, cluster.port, wrap=lambda inner: DelayingConnector(inner, may_pull)),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        call = cluster.ask("r", prompt, params)
        begin = await read(call, 2)
        assert {event.tokens.index for event in begin} == {0, 1}
        assert not said.has(Transferred, "r")
        may_pull.set()
        assert await rest(call, begin) == expect(llm, prompt, params)
        transferred = said.find(Transferred, "r")
        assert (transferred.num_blocks, transferred.num_recomputed_tokens) == (10, 0)
        await cluster.wait_for_idle("prefill", "decode")


async def test_a_request_cancelled_during_its_transfer_leaves_no_block_behind(said: Said) -> None:
    may_pull = threading.Event()
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port),
        working(Role.DECODE, cluster.port, wrap=lambda inner: DelayingConnector(inner, may_pull)),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        num_blocks = said.num_blocks("decode")
        call = cluster.ask("r", draw_prompt(300, seed=7), greedy(5))
        await read(call, 1)
        await until(lambda: said.num_blocks("decode") == num_blocks - 10, HEARD_WITHIN_S)
        call.cancel()
        await cluster.wait_for_idle("prefill", "decode")
        assert not said.has(Transferred, "r")


async def test_a_holder_drops_what_is_malformed_and_goes_on(
    llm: LLM, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = draw_prompt(50, seed=8)
    from_a_producer = LeaseGone(transfer_id="t", producer_epoch=1, reason="")
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port) as peer_address,
        working(Role.DECODE, cluster.port),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.connect(peer_address)
            for frames in (*MALFORMED, [encode_peer(from_a_producer)]):
                await peer.send_multipart(frames)
            stale = Subscribe(transfer_id="t", request_id="r", producer_epoch=7, indices=(0,), lease_s=1.0)
            await peer.send(encode_peer(stale))
            gone = decode_peer(await peer.recv())
            assert gone == LeaseGone(
                transfer_id="t", producer_epoch=7, reason="epoch 7 of this worker is over"
            )
            peer.linger = 0
            await peer.send(b"x" * (2 * MAX_MESSAGE_BYTES))
        assert await rest(cluster.ask("r", prompt, greedy(9)), []) == expect(llm, prompt, greedy(9))
    assert caplog.text.count("dropped a malformed message on the peer channel") == len(MALFORMED)
    assert "dropped a LeaseGone on the peer channel" in caplog.text


async def test_a_puller_drops_what_is_malformed_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    release = Release(transfer_id="t", producer_epoch=1)
    ready = BlocksReady(transfer_id="t", producer_epoch=1, offers=(), renewal=3)
    heard: list[Any] = []
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as producer:
        producer.linger = 0
        port = producer.bind_to_random_port("tcp://127.0.0.1")
        consumer = ConsumerEndpoint(context, "decode-1", heard.append)
        consumer.send(f"tcp://127.0.0.1:{port}", release)
        name, message = await producer.recv_multipart()
        assert decode_peer(message) == release
        for frames in (*MALFORMED, [encode_peer(release)], [encode_peer(ready)]):
            await producer.send_multipart([name, *frames])
        await until(lambda: bool(heard))
        assert heard == [ready]
        await consumer.close()
    assert "dropped a malformed message on the peer channel" in caplog.text
    assert "dropped a Release on the peer channel" in caplog.text


async def test_a_holder_that_starts_again_serves_under_its_new_epoch(llm: LLM, said: Said) -> None:
    prompts = [draw_prompt(100, seed=9), draw_prompt(120, seed=10)]
    async with routing(said) as cluster, working(Role.DECODE, cluster.port):
        peer_address = "tcp://127.0.0.1:0"
        for epoch, prompt in enumerate(prompts, start=1):
            async with working(
                Role.PREFILL, cluster.port, epoch=epoch, peer_address=peer_address
            ) as peer_address:
                await cluster.wait_for_idle("prefill", "decode")
                outputs = await rest(cluster.ask(f"r{epoch}", prompt, greedy(9)), [])
                assert outputs == expect(llm, prompt, greedy(9))
                assert said.find(Transferred, f"r{epoch}").num_recomputed_tokens == 0
            await cluster.wait_for_idle("decode")


async def test_a_holder_that_starts_again_during_a_transfer_costs_time_but_no_token(
    llm: LLM, said: Said
) -> None:
    prompt = draw_prompt(150, seed=11)
    may_pull = threading.Event()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(routing(said))
        await stack.enter_async_context(
            working(Role.DECODE, cluster.port, wrap=lambda inner: DelayingConnector(inner, may_pull))
        )
        async with working(Role.PREFILL, cluster.port) as peer_address:
            await cluster.wait_for_idle("prefill", "decode")
            call = cluster.ask("r", prompt, greedy(9))
            begin = await read(call, 1)
        await stack.enter_async_context(
            working(Role.PREFILL, cluster.port, epoch=2, peer_address=peer_address)
        )
        may_pull.set()
        assert await rest(call, begin) == expect(llm, prompt, greedy(9))
        assert said.find(Transferred, "r").num_recomputed_tokens == len(prompt)
        await cluster.wait_for_idle("prefill", "decode")
