"""`baton chat` against a scripted router: what it sends, what it prints, what it keeps."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from baton.cli import main
from baton.commands.chat import Answer
from baton.executors import router_client
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1 import baton_pb2_grpc

pytestmark = pytest.mark.slow

MAX_MODEL_LEN = 100


class Scripted(baton_pb2_grpc.BatonServicer):
    """Answers "you said TEXT"; refuses long conversations, and fails at "fail"."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.has_chat_template = True

    def GetModelInfo(self, request: pb.GetModelInfoRequest, context: grpc.ServicerContext) -> pb.ModelInfo:  # noqa: N802
        return pb.ModelInfo(model="tiny", has_chat_template=self.has_chat_template)

    def Tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeResponse:  # noqa: N802
        return pb.TokenizeResponse(count=num_tokens(request.chat), max_model_len=MAX_MODEL_LEN)

    def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateEvent]:
        self.requests.append(request)
        if num_tokens(request.chat) >= MAX_MODEL_LEN:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "prompt is too long")
        text = request.chat.messages[-1].content
        for word in ("you ", "said ", text):
            yield pb.GenerateEvent(tokens=pb.TokensEvent(text=word, token_ids=[1]))
            if text == "fail":
                context.abort(grpc.StatusCode.UNAVAILABLE, "worker w1 was lost")
        yield pb.GenerateEvent(finished=pb.FinishedEvent())


def num_tokens(chat: pb.Chat) -> int:
    return sum(len(message.content) for message in chat.messages)


@pytest.fixture
def router() -> Iterator[tuple[Scripted, str]]:
    with ThreadPoolExecutor(2) as pool:
        server, scripted = grpc.server(pool), Scripted()
        baton_pb2_grpc.add_BatonServicer_to_server(scripted, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield scripted, f"127.0.0.1:{port}"
        server.stop(None).wait()


def run_chat(monkeypatch: pytest.MonkeyPatch, address: str, *lines: str, flags: tuple[str, ...] = ()) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return main(["chat", "--address", address, *flags])


def said(request: pb.GenerateRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.chat.messages]


def test_a_conversation_keeps_its_history_until_it_is_reset(
    router: tuple[Scripted, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted, address = router
    lines = ("hello", "", "and you?", "/reset", "again", "/exit", "never")
    flags = ("--system", "be brief", "--max-tokens", "9", "--temperature", "0", "--model-name", "tiny")
    assert run_chat(monkeypatch, address, *lines, flags=flags) == 0
    first, second, third = scripted.requests
    system, hello = ("system", "be brief"), ("user", "hello")
    assert said(first) == [system, hello]
    assert said(second) == [system, hello, ("assistant", "you said hello"), ("user", "and you?")]
    assert said(third) == [system, ("user", "again")]
    assert first.model == "tiny"
    assert first.sampling_params == pb.SamplingParams(max_tokens=9, temperature=0.0)
    timing = r"\[TTFT [\d.]+ ms, 3 tokens in [\d.]+ ms: [\d.]+ tokens/s\]"
    assert re.sub(timing, "[timing]", capsys.readouterr().out).splitlines() == [
        *("> hello", "you said hello", "[timing]", "> "),
        *("> and you?", "you said and you?", "[timing]"),
        *("> /reset", "[the conversation starts anew]"),
        *("> again", "you said again", "[timing]", "> /exit"),
    ]


def test_a_failed_question_leaves_the_conversation_and_the_exit_code_tells(
    router: tuple[Scripted, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted, address = router
    assert run_chat(monkeypatch, address, "fail", "hello") == 1
    assert said(scripted.requests[1]) == [("user", "hello")]
    assert "baton chat: worker w1 was lost\n" in capsys.readouterr().err


def test_a_full_context_is_named_and_a_reset_helps(
    router: tuple[Scripted, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted, address = router
    assert run_chat(monkeypatch, address, "x" * 60, "y" * 60, "/reset", "hello") == 1
    error = "the conversation has 189 tokens; allowed: 99. /reset starts a new one"
    assert f"baton chat: {error}\n" in capsys.readouterr().err
    assert said(scripted.requests[2]) == [("user", "hello")]


def test_a_model_without_a_template_is_refused(
    router: tuple[Scripted, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted, address = router
    scripted.has_chat_template = False
    assert run_chat(monkeypatch, address, "hello") == 1
    assert "model is 'tiny', which has no chat template; allowed: " in capsys.readouterr().err
    assert not scripted.requests


@pytest.mark.parametrize("command", [["chat"], ["complete", "hello"]])
def test_a_router_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.setattr(router_client, "CONNECT_WITHIN_S", 0.2)
    assert main([*command, "--address", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == f"baton {command[0]}: no router answers at 127.0.0.1:1\n"


def test_an_answer_that_breaks_off_names_the_way_on(
    router: tuple[Scripted, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["complete", "--chat", "fail", "--address", router[1]]) == 1
    advice = "another router of the fleet can go on with it, by --other-router"
    assert capsys.readouterr().err == (
        f"baton complete: the answer broke off: worker w1 was lost; {advice}\n"
    )


def test_the_grpc_port_tells_a_command_that_needs_the_http_port(
    router: tuple[Scripted, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "r1", "--address", router[1]]) == 1
    assert "which speaks gRPC; this command needs the HTTP port (--port, 8000" in capsys.readouterr().err


def test_the_rate_of_an_answer_counts_its_first_piece_and_the_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((10.0, 10.25, 10.5))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    answer = Answer()
    answer.take_text("you said", num_tokens=40)
    answer.take_text(" hello", num_tokens=1)
    assert answer.summary() == "[TTFT 250.0 ms, 41 tokens in 500.0 ms: 82.0 tokens/s]"
    times = iter((10.0,))
    assert Answer().summary() == "[0 tokens]"
