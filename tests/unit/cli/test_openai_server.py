"""`--url` of `baton complete` and `baton chat` against a scripted server of OpenAI's interface."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton.cli import main
from tests.http_threads import Calls, serving_calls

DONE = b"data: [DONE]\n\n"


def chunk(text: str, index: int = 0, finish_reason: str | None = None) -> bytes:
    choice = {"index": index, "text": text, "delta": {"content": text}, "finish_reason": finish_reason}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


@contextmanager
def serving(*pieces: bytes, is_ended: bool = True) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A server whose every answer is these chunks, and the requests that it has seen."""
    asked: list[dict[str, object]] = []

    class Answers(Calls):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(json.loads(self.body()))
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in (*pieces, b"") if is_ended else pieces:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.close_connection = True

    with serving_calls(Answers) as address:
        yield f"http://{address}/v1", asked


def complete(url: str, *flags: str) -> int:
    return main(["complete", "--url", url, "--model-name", "m", *flags, "-q", "hi"])


@pytest.mark.parametrize("is_ended", [True, False])
def test_an_answer_that_breaks_off_is_an_error(capsys: pytest.CaptureFixture[str], *, is_ended: bool) -> None:
    with serving(chunk("Hello"), chunk(" wor"), is_ended=is_ended) as (url, _):
        assert complete(url) == 1
    told = capsys.readouterr()
    assert told.out == "> hi\nHello wor\n"
    assert told.err == f"baton complete: the answer of {url} broke off\n"


def test_without_a_prompt_each_line_of_the_input_is_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
    with serving(chunk("Hello"), DONE) as (url, asked):
        assert main(["complete", "--url", url, "--model-name", "m"]) == 0
    assert [body["prompt"] for body in asked] == ["one", "two"]
    assert capsys.readouterr().out == "> one\nHello\n\n> \n> two\nHello\n\n"


def test_an_answer_is_whole_by_its_mark_or_the_reasons_of_all_its_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = chunk("a", 0, "stop"), chunk("b", 1, "length")
    for pieces, status in (((chunk("a"), DONE), 0), ((first, second), 0), ((first, chunk("b", 1)), 1)):
        with serving(*pieces) as (url, _):
            assert complete(url, "--n", "2") == status
    assert capsys.readouterr().err.count("broke off") == 1


def test_a_conversation_forgets_an_answer_that_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    with serving(chunk("Hel")) as (url, asked):
        assert main(["chat", "--url", url, "--model-name", "m"]) == 1
    assert [body["messages"] for body in asked] == [
        [{"role": "user", "content": "hello"}],
        [{"role": "user", "content": "again"}],
    ]
