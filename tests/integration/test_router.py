"""A whole router between real clients and scripted workers, over the loopback."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import grpc
import pytest

from baton_core.sessions.router_messages import Cancel, Prefill, Reserve, Start
from baton_core.sessions.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.text.tokenization import Tokenizer
from tests.integration.router_cluster import (
    ANSWER,
    PROMPT,
    TEXT,
    TOKENIZER,
    ask,
    cluster,
    error_of,
    pair,
    serving,
    tokens_of,
)
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.unit.router.folders import write_model_folder


async def test_a_split_request_streams_the_text_of_its_tokens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        prefill, decode = pair(answers=[ANSWER])
        async with cluster(prefill, decode, split="always") as stub:
            events, finished = await tokens_of(stub.Generate(ask(seed=-7)))
            assert "".join(event.text for event in events) == TEXT
            assert [token for event in events for token in event.token_ids] == list(ANSWER)
            reasons = [event.finish_reason for event in events]
            assert reasons == [""] * (len(events) - 1) + ["length"]
            assert events[-1].WhichOneof("stop_reason") is None
            usage = pb.Usage(
                prompt_tokens=len(TOKENIZER.encode(PROMPT)), completion_tokens=len(ANSWER), cached_tokens=3
            )
            assert (finished.usage, finished.seed, finished.request_id) == (usage, -7, "r1")
            timings = finished.timings
            assert (timings.prefill_worker, timings.decode_worker) == ("p1", "d1")
            assert (timings.prefill_s, timings.transfer_s, timings.transferred_bytes) == (0.125, 0.25, 4096)
            assert timings.queue_s >= 0.5
            assert 0 < timings.first_token_s <= timings.total_s
            await until(lambda: prefill.num_cancels("r1") == decode.num_cancels("r1") == 1)
            assert [type(command) for command in prefill.commands] == [Prefill, Cancel]
            assert [type(command) for command in decode.commands] == [Reserve, Start, Cancel]
        line = next(line for line in caplog.records if line.getMessage().startswith("finished"))
        assert line.__dict__["request_id"] == "r1"
        assert f"on p1 and d1: {usage.prompt_tokens} prompt tokens (3 cached)" in line.getMessage()
        assert f"{len(ANSWER)} new" in line.getMessage()


async def test_a_stop_string_across_tokens_ends_its_sequence_and_the_work_on_it() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=len(ANSWER) - 1)
    async with cluster(worker) as stub:
        events, finished = await tokens_of(stub.Generate(ask(stop=["lazy dog, and", "near"])))
        assert "".join(event.text for event in events) == TEXT[: TEXT.index("lazy")]
        assert events[-1].finish_reason == "stop"
        assert events[-1].stop_text == "lazy dog, and"
        sent = [token for event in events for token in event.token_ids]
        assert sent == list(ANSWER[: len(sent)])
        assert TOKENIZER.decode(sent).endswith("lazy dog, and")
        assert not TOKENIZER.decode(sent[:-1]).endswith("lazy dog, and")
        assert finished.usage.completion_tokens == len(sent)
        await until(lambda: worker.num_cancels("r1") == 1)


async def test_two_sequences_end_each_in_its_own_way() -> None:
    prefill, decode = pair(answers=[ANSWER, [*ANSWER[:4], 77]])
    async with cluster(prefill, decode, split="always") as stub:
        request = ask(n=2, stop_token_ids=[77], stop=["jumps"])
        events, finished = await tokens_of(stub.Generate(request))
        texts = ["".join(event.text for event in events if event.index == index) for index in range(2)]
        assert texts == [TEXT[: TEXT.index("jumps")], TOKENIZER.decode(ANSWER[:4])]
        first, second = (
            next(event for event in events if event.index == index and event.finish_reason)
            for index in range(2)
        )
        assert (first.finish_reason, first.stop_text) == ("stop", "jumps")
        assert (second.finish_reason, second.stop_token_id) == ("stop", 77)
        assert finished.usage.completion_tokens == sum(len(event.token_ids) for event in events)
        assert sum(len(event.token_ids) for event in events if event.index == 1) == 5


async def test_the_end_of_sequence_token_ends_a_sequence_without_a_stop_reason() -> None:
    async with cluster(ScriptedWorker("w1", answers=[[*ANSWER[:3], 2]])) as stub:
        events, finished = await tokens_of(stub.Generate(ask(request_id="")))
        assert "".join(event.text for event in events) == TOKENIZER.decode(ANSWER[:3])
        assert (events[-1].finish_reason, events[-1].WhichOneof("stop_reason")) == ("stop", None)
        assert finished.request_id.startswith("req-")
        assert finished.usage.completion_tokens == 4
        assert finished.timings.decode_worker == finished.timings.prefill_worker == "w1"


async def test_a_client_that_cancels_stops_the_work_on_both_workers() -> None:
    prefill, decode = pair(answers=[ANSWER], num_steps=3)
    async with cluster(prefill, decode, split="always") as stub:
        call = stub.Generate(ask())
        await call.read()
        call.cancel()
        await until(lambda: prefill.num_cancels("r1") == decode.num_cancels("r1") == 1)
        again = stub.Generate(ask())  # the name is free again
        assert (await again.read()).tokens.token_ids == [ANSWER[0]]
        again.cancel()
        await until(lambda: prefill.num_cancels("r1") == decode.num_cancels("r1") == 2)


async def test_a_deadline_of_the_client_stops_the_work_on_both_workers() -> None:
    prefill, decode = pair(answers=[ANSWER], num_steps=3)
    async with cluster(prefill, decode, split="always") as stub:
        await stub.GetModelInfo(pb.GetModelInfoRequest())  # it is connected
        code, _ = await error_of(stub.Generate(ask(), timeout=1.0))
        assert code == "DEADLINE_EXCEEDED"
        await until(lambda: prefill.num_cancels("r1") == decode.num_cancels("r1") == 1)


async def test_a_request_ends_at_the_routers_timeout_when_the_client_sets_none() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
    async with cluster(worker, request_timeout_s=1.0) as stub:
        code, details = await error_of(stub.Generate(ask()))
        assert code == "DEADLINE_EXCEEDED"
        # On a busy machine the guard around all of a request's steps may end it first, without a state.
        assert re.fullmatch(r"not finished within [\d.]+ s(, last in state decoding)?", details)
        await until(lambda: worker.num_cancels("r1") == 1)


SMALL_WINDOW = (("grpc.http2.bdp_probe", 0),)
"""Options of a client that takes no more unread the faster its connection is."""
LOST = re.compile(
    r"worker d1 was lost: worker d1 ended the session; "
    r"waited \d\.\d s for a worker: no decode worker is registered"
)


async def test_a_lost_worker_is_named_to_those_whom_no_other_takes_on() -> None:
    prefill, decode = pair(answers=[ANSWER], num_steps=3)
    async with cluster(prefill, decode, split="always", move_timeout_s=0.5) as stub:
        call = stub.Generate(ask())
        await call.read()
        await decode.client.close()
        code, details = await error_of(call)
        assert code == "UNAVAILABLE"
        assert LOST.fullmatch(details)
        await until(lambda: prefill.num_cancels("r1") == 1)
        assert await error_of(stub.Generate(ask())) == ("UNAVAILABLE", "no decode worker is registered")


async def test_without_workers_a_request_is_refused_at_once() -> None:
    async with cluster() as stub, asyncio.timeout(10.0):
        assert await error_of(stub.Generate(ask())) == ("UNAVAILABLE", "no decode worker is registered")


async def test_a_bad_request_names_its_field_and_reaches_no_worker() -> None:
    long = pb.TokenIds(ids=[5] * 2047)
    bad = {
        "n": ask(n=0),
        "temperature": ask(temperature=-1.0),
        "max_tokens": ask(max_tokens=0),
        "stop_token_ids": ask(stop_token_ids=[4096]),
        "text": ask(""),
        "prompt": pb.GenerateRequest(),
        "token_ids is 4096; allowed: token ids": pb.GenerateRequest(token_ids=pb.TokenIds(ids=[4096])),
        "request_id": ask(request_id="x" * 129),
        "token_ids is '2047 tokens'; allowed: 1 to 1999 tokens": pb.GenerateRequest(token_ids=long),
    }
    worker = ScriptedWorker("w1", max_model_len=2000)
    async with cluster(worker) as stub:
        for field, request in bad.items():
            code, details = await error_of(stub.Generate(request))
            assert code == "INVALID_ARGUMENT"
            assert details.startswith(field)
            assert "; allowed: " in details
        other = await error_of(stub.Generate(pb.GenerateRequest(text="a", model="other")))
        assert other == ("NOT_FOUND", "model is 'other'; allowed: 'tiny'")
        assert worker.commands == []


async def test_a_second_request_of_the_same_name_is_refused_and_the_first_goes_on() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
    async with cluster(worker) as stub:
        first = stub.Generate(ask())
        await first.read()
        code, details = await error_of(stub.Generate(ask()))
        assert code == "ALREADY_EXISTS"
        assert details == "request_id is 'r1'; allowed: a name that no running request has"
        assert [(await first.read()).tokens.token_ids for _ in range(2)] == [[t] for t in ANSWER[1:3]]
        assert worker.num_cancels("r1") == 0


async def test_a_client_that_does_not_read_is_given_up_and_no_other() -> None:
    flood = [*[5] * 200_000, 2]
    worker = ScriptedWorker(
        "w1", answers=[flood], num_tokens_per_output=100, max_model_len=2**20, num_blocks=2**18
    )
    async with (
        serving() as server,
        worker.joined(server.grpc_port),
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}", SMALL_WINDOW) as channel,
    ):
        stub = BatonStub(channel)
        stalled = stub.Generate(ask(max_tokens=300_000))
        await until(lambda: worker.num_cancels("r1") == 1)
        events, _ = await tokens_of(stub.Generate(ask(request_id="r2", max_tokens=1)))
        assert len(events) == 1
        code, details = await error_of(stalled)
        assert code == "RESOURCE_EXHAUSTED"
        assert details == "the client reads too slowly: 1024 events wait for it, the maximum"


async def test_a_request_too_large_for_a_message_fails_alone(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path, config={"vocab_size": 2**22, "max_position_embeddings": 2**20})
    prefill, decode = (
        ScriptedWorker(name, role, answers=[[7, 8]], model=model, max_model_len=2**20, num_blocks=2**20)
        for name, role in (("p1", Role.PREFILL), ("d1", Role.DECODE))
    )
    async with cluster(prefill, decode, model=str(model)) as stub:
        running = stub.Generate(ask(max_tokens=3))
        await running.read()
        huge = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[2**22 - 1] * 270_000))
        code, details = await error_of(stub.Generate(huge))
        assert code == "INVALID_ARGUMENT"
        assert "at most 1048512 bytes" in details
        assert not any(isinstance(command, Prefill | Reserve) for command in prefill.commands)
        assert (await running.read()).tokens.token_ids == [8]


async def test_a_fault_in_one_request_ends_it_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole_text = Tokenizer.whole_text

    def fail_for_77(self: Tokenizer, token_id: int) -> str | None:
        if token_id == 77:
            raise RuntimeError("a fault")
        return whole_text(self, token_id)

    monkeypatch.setattr(Tokenizer, "whole_text", fail_for_77)
    worker = ScriptedWorker("w1", answers=[ANSWER[:4], [*ANSWER[:2], 77, 5]])
    async with cluster(worker) as stub:
        code, details = await error_of(stub.Generate(ask(request_id="r1", n=2)))
        assert (code, details) == ("INTERNAL", "internal error; the router's log has the cause")
        await until(lambda: worker.num_cancels("r1") == 1)
        events, _ = await tokens_of(stub.Generate(ask(request_id="r2", max_tokens=4)))
        assert "".join(event.text for event in events) == TOKENIZER.decode(ANSWER[:4])
    fault = next(
        line for line in caplog.records if "request_id" in line.__dict__ and line.levelno == logging.ERROR
    )
    assert fault.__dict__["request_id"] == "r1"
    assert "a fault" in caplog.text
