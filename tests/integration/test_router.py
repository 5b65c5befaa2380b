"""A whole router between real clients and scripted workers, over the loopback."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_core.errors import IncompatibleWorkerError, InvalidConfigError
from baton_core.router_messages import Cancel, Prefill, Reserve, Start
from baton_core.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.main import RouterServer
from baton_router.model_folder import read_model_folder
from baton_router.settings import RouterSettings
from baton_router.tokenization import Tokenizer
from tests.builders import make_identity
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.unit.router.folders import write_model_folder

MODEL = Path(__file__).parents[2] / "lib" / "baton" / "bundled"
TOKENIZER = Tokenizer(read_model_folder(MODEL))
TEXT = "The quick brown fox jumps over the lazy dog, and 你好 to all. The end is not near."
ANSWER = TOKENIZER.encode(TEXT)
PROMPT = "Tell me a story."


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[RouterServer]:
    fields = {"model": str(MODEL), "served_model_name": "tiny", "port": 0, "shutdown_timeout_s": 0.0}
    server = RouterServer(RouterSettings(**{**fields, **settings}))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def cluster(*workers: ScriptedWorker, **settings: Any) -> AsyncIterator[BatonStub]:
    """A router with workers that have joined, and a client of it."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(**settings))
        for worker in workers:
            await stack.enter_async_context(worker.joined(server.port))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")
        yield BatonStub(await stack.enter_async_context(channel))


def pair(**script: Any) -> tuple[ScriptedWorker, ScriptedWorker]:
    return ScriptedWorker("p1", Role.PREFILL, **script), ScriptedWorker("d1", Role.DECODE, **script)


def ask(prompt: str = PROMPT, *, request_id: str = "r1", **params: Any) -> pb.GenerateRequest:
    params = {"max_tokens": len(ANSWER), "temperature": 0.0, **params}
    return pb.GenerateRequest(text=prompt, request_id=request_id, sampling_params=pb.SamplingParams(**params))


async def tokens_of(call: Any) -> tuple[list[pb.TokensEvent], pb.FinishedEvent]:
    """Read a stream to its end, which is one finished event."""
    events = [event async for event in call]
    assert [event.WhichOneof("event") for event in events] == ["tokens"] * (len(events) - 1) + ["finished"]
    return [event.tokens for event in events[:-1]], events[-1].finished


async def error_of(call: Any) -> tuple[str, str]:
    """Read a stream to its end, which is an error."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    raise AssertionError("the call ended without an error")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario

    asyncio.run(limited())


def test_a_split_request_streams_the_text_of_its_tokens(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        prefill, decode = pair(answers=[ANSWER])
        async with cluster(prefill, decode, split="always") as stub:
            events, finished = await tokens_of(stub.Generate(ask(seed=-7)))
            assert "".join(event.text for event in events) == TEXT
            assert [token for event in events for token in event.token_ids] == list(ANSWER)
            reasons = [event.finish_reason for event in events]
            assert reasons == [""] * (len(events) - 1) + ["length"]
            assert events[-1].WhichOneof("stop_reason") is None
            usage = pb.Usage(
                prompt_tokens=len(TOKENIZER.encode(PROMPT)),
                completion_tokens=len(ANSWER),
                cached_tokens=3,
            )
            assert (finished.usage, finished.seed, finished.request_id) == (usage, -7, "r1")
            timings = finished.timings
            assert (timings.prefill_worker, timings.decode_worker) == ("p1", "d1")
            assert (timings.prefill_s, timings.transfer_s, timings.transferred_bytes) == (0.125, 0.25, 4096)
            assert timings.queue_s >= 0.5
            assert 0 < timings.first_token_s <= timings.total_s
            assert [type(command) for command in prefill.commands] == [Prefill, Cancel]
            assert [type(command) for command in decode.commands] == [Reserve, Start, Cancel]
        line = next(line for line in caplog.records if line.getMessage().startswith("finished"))
        assert line.__dict__["request_id"] == "r1"
        assert f"on p1 and d1: {usage.prompt_tokens} prompt tokens (3 cached)" in line.getMessage()
        assert f"{len(ANSWER)} new" in line.getMessage()

    with caplog.at_level(logging.INFO):
        run(scenario())


def test_a_stop_string_across_tokens_ends_its_sequence_and_the_work_on_it() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_two_sequences_end_each_in_its_own_way() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_the_end_of_sequence_token_ends_a_sequence_without_a_stop_reason() -> None:
    async def scenario() -> None:
        async with cluster(ScriptedWorker("w1", answers=[[*ANSWER[:3], 2]])) as stub:
            events, finished = await tokens_of(stub.Generate(ask(request_id="")))
            assert "".join(event.text for event in events) == TOKENIZER.decode(ANSWER[:3])
            assert (events[-1].finish_reason, events[-1].WhichOneof("stop_reason")) == ("stop", None)
            assert finished.request_id.startswith("req-")
            assert finished.usage.completion_tokens == 4
            assert finished.timings.decode_worker == finished.timings.prefill_worker == "w1"

    run(scenario())


def test_a_client_that_cancels_stops_the_work_on_both_workers() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_deadline_of_the_client_stops_the_work_on_both_workers() -> None:
    async def scenario() -> None:
        prefill, decode = pair(answers=[ANSWER], num_steps=3)
        async with cluster(prefill, decode, split="always") as stub:
            code, _ = await error_of(stub.Generate(ask(), timeout=0.3))
            assert code == "DEADLINE_EXCEEDED"
            await until(lambda: prefill.num_cancels("r1") == decode.num_cancels("r1") == 1)

    run(scenario())


def test_a_request_ends_at_the_routers_timeout_when_the_client_sets_none() -> None:
    async def scenario() -> None:
        worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
        async with cluster(worker, request_timeout_s=0.2) as stub:
            code, details = await error_of(stub.Generate(ask()))
            assert code == "DEADLINE_EXCEEDED"
            assert details.startswith("not finished within 0.1")
            assert details.endswith("last in state decoding")
            await until(lambda: worker.num_cancels("r1") == 1)

    run(scenario())


def test_a_lost_worker_is_named_at_once_to_those_who_depend_on_it() -> None:
    async def scenario() -> None:
        prefill, decode = pair(answers=[ANSWER], num_steps=3)
        async with cluster(prefill, decode, split="always") as stub:
            call = stub.Generate(ask())
            await call.read()
            began = time.monotonic()
            await decode.client.close()
            code, details = await error_of(call)
            assert (code, details) == ("UNAVAILABLE", "worker d1 was lost: worker d1 ended the session")
            assert time.monotonic() - began < 2.0
            await until(lambda: prefill.num_cancels("r1") == 1)
            assert await error_of(stub.Generate(ask())) == (
                "UNAVAILABLE",
                "no decode worker is registered",
            )

    run(scenario())


def test_without_workers_a_request_is_refused_at_once() -> None:
    async def scenario() -> None:
        async with cluster() as stub, asyncio.timeout(1.0):
            assert await error_of(stub.Generate(ask())) == (
                "UNAVAILABLE",
                "no decode worker is registered",
            )

    run(scenario())


def test_a_bad_request_names_its_field_and_reaches_no_worker() -> None:
    long = pb.TokenIds(ids=[5] * 2047)
    bad = {
        "n": ask(n=0),
        "temperature": ask(temperature=-1.0),
        "max_tokens": ask(max_tokens=0),
        "stop_token_ids": ask(stop_token_ids=[4096]),
        "text": ask(""),
        "prompt": pb.GenerateRequest(),
        "token_ids": pb.GenerateRequest(token_ids=pb.TokenIds(ids=[4096])),
        "request_id": ask(request_id="x" * 129),
        "prompt is '2047 tokens'; allowed: 1 to 1999 tokens": pb.GenerateRequest(token_ids=long),
    }

    async def scenario() -> None:
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

    run(scenario())


def test_a_second_request_of_the_same_name_is_refused_and_the_first_goes_on() -> None:
    async def scenario() -> None:
        worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
        async with cluster(worker) as stub:
            first = stub.Generate(ask())
            await first.read()
            code, details = await error_of(stub.Generate(ask()))
            assert code == "INVALID_ARGUMENT"
            assert details == "request_id is 'r1'; allowed: a name that no running request has"
            assert [(await first.read()).tokens.token_ids for _ in range(2)] == [[t] for t in ANSWER[1:3]]
            assert worker.num_cancels("r1") == 0

    run(scenario())


def test_a_client_that_does_not_read_is_given_up_and_no_other() -> None:
    async def scenario() -> None:
        flood = [*[5] * 200_000, 2]
        worker = ScriptedWorker("w1", answers=[flood], num_tokens_per_output=100, max_model_len=2**20)
        async with cluster(worker) as stub:
            stalled = stub.Generate(ask(max_tokens=300_000))
            await until(lambda: worker.num_cancels("r1") == 1)
            events, _ = await tokens_of(stub.Generate(ask(request_id="r2", max_tokens=1)))
            assert len(events) == 1
            code, details = await error_of(stalled)
            assert code == "RESOURCE_EXHAUSTED"
            assert details == "the client reads too slowly: 1024 events wait for it, the maximum"

    run(scenario())


def test_a_request_too_large_for_a_message_fails_alone(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path, config={"vocab_size": 2**22, "max_position_embeddings": 2**20})

    async def scenario() -> None:
        prefill, decode = (
            ScriptedWorker(name, role, answers=[[7, 8]], max_model_len=2**20, num_blocks=2**20)
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

    run(scenario())


def test_a_fault_in_one_request_ends_it_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decode = Tokenizer.decode

    def fail_for_77(self: Tokenizer, token_ids: list[int], **flags: bool) -> str:
        if 77 in token_ids:
            raise RuntimeError("a fault")
        return decode(self, token_ids, **flags)

    monkeypatch.setattr(Tokenizer, "decode", fail_for_77)

    async def scenario() -> None:
        worker = ScriptedWorker("w1", answers=[ANSWER[:4], [*ANSWER[:2], 77, 5]])
        async with cluster(worker) as stub:
            code, details = await error_of(stub.Generate(ask(request_id="r1", n=2)))
            assert (code, details) == ("INTERNAL", "internal error; the router's log has the cause")
            await until(lambda: worker.num_cancels("r1") == 1)
            events, _ = await tokens_of(stub.Generate(ask(request_id="r2", max_tokens=4)))
            assert "".join(event.text for event in events) == TOKENIZER.decode(ANSWER[:4])

    run(scenario())
    fault = next(line for line in caplog.records if line.levelno == logging.ERROR)
    assert fault.__dict__["request_id"] == "r1"
    assert "a fault" in caplog.text


def test_health_and_model_info_follow_the_workers() -> None:
    async def scenario() -> None:
        prefill, decode = pair(answers=[ANSWER])
        async with serving() as server, AsyncExitStack() as stack:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{server.port}"))
            stub, health = BatonStub(channel), health_pb2_grpc.HealthStub(channel)
            statuses = health.Watch(health_pb2.HealthCheckRequest())
            response = health_pb2.HealthCheckResponse
            assert (await statuses.read()).status == response.NOT_SERVING
            await stack.enter_async_context(prefill.joined(server.port))
            info = await stub.GetModelInfo(pb.GetModelInfoRequest())
            assert (info.model, info.vocab_size, info.is_ready) == ("tiny", 4096, False)
            await stack.enter_async_context(decode.joined(server.port))
            assert (await statuses.read()).status == response.SERVING
            info = await stub.GetModelInfo(pb.GetModelInfoRequest())
            assert (info.max_model_len, info.is_ready) == (2048, True)
            assert [(worker.worker_id, worker.role, worker.num_blocks) for worker in info.workers] == [
                ("p1", "prefill", 1024),
                ("d1", "decode", 1024),
            ]
            await prefill.client.close()
            assert (await statuses.read()).status == response.NOT_SERVING
            statuses.cancel()

    run(scenario())


def test_a_worker_of_another_model_is_refused_with_the_reason() -> None:
    async def scenario() -> None:
        async with serving() as server, ScriptedWorker("w1").joined(server.port):
            stranger = ScriptedWorker("w2", identity=make_identity(model="other"))
            with pytest.raises(IncompatibleWorkerError, match="model is 'other'; allowed: 'tiny'"):
                async with stranger.joined(server.port):
                    pass
            assert not stranger.has_joined

    run(scenario())


def test_a_stopping_router_lets_running_requests_end_but_not_forever() -> None:
    async def scenario() -> None:
        worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=3)
        settings = RouterSettings(model=str(MODEL), port=0, shutdown_timeout_s=0.3)
        server = RouterServer(settings)
        await server.start()
        async with (
            worker.joined(server.port),
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            stub = BatonStub(channel)
            calls = [stub.Generate(ask(request_id=name)) for name in ("r1", "r2")]
            for call in calls:
                await call.read()
            stopping = asyncio.create_task(server.stop())
            await asyncio.sleep(0.05)
            refused = await error_of(stub.Generate(ask(request_id="r3")))
            assert refused == ("UNAVAILABLE", "the router shuts down")
            worker.go_on("r1")
            while (event := await calls[0].read()).WhichOneof("event") != "finished":
                assert event.tokens.index == 0
            assert event.finished.usage.completion_tokens == len(ANSWER)
            assert await error_of(calls[1]) == ("UNAVAILABLE", "the router shuts down")
            await stopping

    run(scenario())


def test_a_port_in_use_is_refused_before_the_model_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = RouterSettings(model="/nowhere", port=taken.getsockname()[1])

        async def scenario() -> None:
            address = f"127.0.0.1:{settings.port}"
            with pytest.raises(InvalidConfigError, match=f"--port is '{address}'.*; allowed: host:port"):
                await RouterServer(settings).start()

        run(scenario())


def test_a_refused_model_ends_the_process_with_two() -> None:
    process = start_process("/nowhere")
    assert process.wait(20) == 2
    assert process.stderr is not None
    with process.stderr as log:
        assert "model is '/nowhere'; allowed: a folder that exists" in log.read()


def test_a_process_serves_until_it_is_told_to_stop() -> None:
    process = start_process(str(MODEL))
    assert process.stderr is not None
    with process.stderr as log:
        assert "serving" in log.readline()
        process.send_signal(signal.SIGTERM)
        assert "stopping" in log.read()
    assert process.wait(10) == 0


def start_process(model: str) -> subprocess.Popen[str]:
    program = (
        "import sys; from baton_router.main import run_router;"
        "from baton_router.settings import RouterSettings;"
        f"sys.exit(run_router(RouterSettings(model={model!r}, port=0)))"
    )
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
