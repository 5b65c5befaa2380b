from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from baton_proto.v1 import baton_pb2, baton_pb2_grpc

CLIENT = Path(__file__).parents[3] / "examples" / "client.py"


class EchoServicer(baton_pb2_grpc.BatonServicer):
    """Answers with the prompt's words; refuses the prompt "refuse me"."""

    def Generate(  # noqa: N802  (the name in the contract)
        self, request: baton_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[baton_pb2.GenerateEvent]:
        if request.text == "refuse me":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "text is refused")
        for word in request.text.split():
            yield baton_pb2.GenerateEvent(tokens=baton_pb2.TokensEvent(text=word + " "))
        usage = baton_pb2.Usage(prompt_tokens=5, completion_tokens=request.sampling_params.max_tokens)
        timings = baton_pb2.Timings(first_token_s=0.25, total_s=1.5)
        yield baton_pb2.GenerateEvent(finished=baton_pb2.FinishedEvent(usage=usage, timings=timings))


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        baton_pb2_grpc.add_BatonServicer_to_server(EchoServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def run_client(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["client.py", *arguments])
    with pytest.raises(SystemExit) as exited:
        runpy.run_path(str(CLIENT), run_name="__main__")
    assert isinstance(exited.value.code, int)
    return exited.value.code


def test_the_client_prints_the_text_and_one_line_of_timings(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_client(monkeypatch, "hello world", "--address", address, "--max-tokens", "3") == 0
    text, timings = capsys.readouterr().out.splitlines()
    assert text == "hello world "
    assert timings.startswith("5 prompt tokens (0 cached), 3 new; first token 250.0 ms")
    assert timings.endswith("1.500 s in all")


def test_a_proxy_of_the_environment_is_passed_by(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert run_client(monkeypatch, "hello", "--address", address) == 0


def test_the_client_prints_status_and_message_of_an_error_and_exits_with_one(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_client(monkeypatch, "refuse me", "--address", address) == 1
    assert capsys.readouterr().err == "INVALID_ARGUMENT: text is refused\n"
