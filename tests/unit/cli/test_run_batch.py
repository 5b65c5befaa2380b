"""`baton run-batch` without a model: lines, results that outlive a run, and requests to a scripted server."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from baton.batch.lines import asking, count_lines, digest_of
from baton.cli import main
from baton.commands import run_batch
from baton.commands.cli_arguments import parse
from baton.commands.run_batch import _serve_args
from baton_bench.http_client import HttpClient, Origin
from baton_core.errors import InvalidConfigError, RequestError
from baton_router.batches.batch_run import BatchRun
from baton_router.batches.partial_results import PartialResults, read_lines
from baton_router.core.batches.batch_lines import BatchRequest, WrongLine, read_line
from baton_router.core.batches.batch_results import BatchError, BatchResponse, BatchResult, answered
from tests.http_threads import Calls, serving_calls

CHAT = "/v1/chat/completions"


def line(custom_id: str = "a", **changed: object) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {}, **changed}).encode()


def result(custom_id: str) -> BatchResult:
    return answered("id", custom_id, BatchResponse(status_code=200, request_id="r", body={"n": 1}))


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in path.read_bytes().splitlines()]


def test_a_line_is_a_request() -> None:
    request = read_line(1, line(url="/v1/messages", body={"model": "m", "stream": False}, other=1))
    assert isinstance(request, BatchRequest)
    assert (request.custom_id, request.method, request.url) == ("a", "POST", "/v1/messages")
    assert json.loads(request.body_with({})) == {"model": "m", "stream": False}
    assert json.loads(request.body_with({"model": "x", "priority": 4})) == {
        "priority": 4,
        "model": "m",
        "stream": False,
    }
    empty = read_line(1, line(body={}))
    assert isinstance(empty, BatchRequest)
    assert (empty.body_with({}), empty.body_with({"priority": 4})) == (b"{}", b'{"priority":4}')


@pytest.mark.parametrize(
    ("wrong", "custom_id", "message"),
    [
        (b"{", None, "line 7: Input data was truncated"),
        (b"\xff", None, "line 7: "),
        (b'{"custom_id": 3}', None, "Expected `str`, got `int` - at `$.custom_id`"),
        (b'{"custom_id": "a"}', "a", "missing required field `method`"),
        (line(method="GET"), "a", "line 7: method is 'GET'; allowed: POST"),
        (line(url="/v1/../sleep"), "a", "line 7: url is '/v1/../sleep'; allowed: the path of a route"),
        (line(url="/sleep"), "a", "line 7: url is '/sleep'; allowed: "),
        (line(body=[]), "a", "Expected `object`, got `array` - at `$.body`"),
        (line(body={"stream": True}), "a", "line 7: body.stream is true; allowed: false"),
        (line(body={"background": 1}), "a", "line 7: body.background is 1; allowed: false"),
        (line(custom_id=""), "", "line 7: custom_id is ''; allowed: 1 to 512 characters"),
    ],
)
def test_a_line_that_is_no_request_says_why(wrong: bytes, custom_id: str | None, message: str) -> None:
    read = read_line(7, wrong)
    assert isinstance(read, WrongLine)
    assert (read.number, read.custom_id) == (7, custom_id)
    assert message in read.message


def test_lines_of_one_custom_id_are_refused_and_empty_ones_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(line("a") + b"\n\n" + line("b") + b"\n{\n{")
    assert count_lines(path, "in") == 4
    path.write_bytes(line("a") + b"\n" + line("b") + b"\n" + line("a", method="GET"))
    with pytest.raises(InvalidConfigError, match="where custom_id is 'a' on two lines; allowed: another one"):
        count_lines(path, "in")
    path.write_bytes(b"\n")
    with pytest.raises(InvalidConfigError, match="allowed: a file with requests"):
        count_lines(path, "in")


@pytest.mark.parametrize("torn", [b'{"id":"x","custom_id":"c"', b"\0\0\0\n", b""])
def test_results_are_there_again_without_what_was_torn(tmp_path: Path, torn: bytes) -> None:
    path, nameless = tmp_path / "partial", BatchError(code="c", message="m", line=4)
    with PartialResults(path) as results:
        results.add(result("a"))
        results.add(BatchResult(id="i", custom_id=None, response=None, error=nameless))
        with pytest.raises(InvalidConfigError, match="which another run writes"):
            PartialResults(path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with PartialResults(path) as results:
        assert (results.done, results.num_errors) == ({"a", 4}, 1)
        results.add(result("c"))
        results.rename(tmp_path / "out")
    assert not path.exists()
    assert (tmp_path / "out").read_bytes().startswith(whole)
    assert [one["custom_id"] for one in written(tmp_path / "out")] == ["a", None, "c"]


def test_a_full_disk_ends_the_run_and_the_next_one_goes_on(tmp_path: Path) -> None:
    path, limits = tmp_path / "partial", resource.getrlimit(resource.RLIMIT_FSIZE)
    with PartialResults(path) as results:
        results.add(result("a"))
        whole = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 9, limits[1]))
        try:
            with pytest.raises(InvalidConfigError, match="allowed: where there is room"):
                results.add(result("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() != whole
    with PartialResults(path) as results:
        assert results.done == {"a"}
        results.add(result("b"))
    assert path.read_bytes().startswith(whole)
    assert [one["custom_id"] for one in written(path)] == ["a", "b"]


def test_a_run_without_a_result_leaves_no_file(tmp_path: Path) -> None:
    with PartialResults(tmp_path / "partial"):
        assert (tmp_path / "partial").exists()
    assert not (tmp_path / "partial").exists()


class Server:
    """Answers what the request's body asks for, lists a model of Baton's, and has files."""

    def __init__(self) -> None:
        self.address = ""
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()

    class Answers(Calls):
        def do_GET(self) -> None:
            models = b'{"data": [{"id": "m", "owned_by": "baton"}]}'
            self.reply(200, models if self.path == "/v1/models" else server.files[self.path])

        def do_PUT(self) -> None:
            server.files[self.path] = self.body()
            self.reply(200, b"")

        def do_POST(self) -> None:
            body = json.loads(self.body())
            server.seen.append((self.headers["x-request-id"], body))
            statuses = body.get("statuses", [200])
            tries = sum(one.get("prompt") == body.get("prompt") for _, one in server.seen)
            status = statuses[min(tries, len(statuses)) - 1]
            error = {"error": {"message": f"refused {body['prompt']}", "type": "t", "code": 404}}
            self.reply(status, json.dumps({"echo": body} if status == 200 else error, indent=1).encode())

    with serving_calls(Answers) as server.address:
        yield server


def prompts(**statuses: list[int]) -> bytes:
    bodies = {name: {"prompt": name, "statuses": wanted} for name, wanted in statuses.items()}
    return b"\n".join(line(name, body=body) for name, body in bodies.items())


async def run(address: str, lines: Path, results: PartialResults, pauses_s: tuple[float, ...]) -> None:
    client = HttpClient(Origin(host="127.0.0.1", port=int(address.rpartition(":")[2])), {})
    try:
        batch = BatchRun(asking(client), results, pauses_s=pauses_s)
        await batch.run(read_lines(lines), 2, lambda: None)
    finally:
        await client.close()


async def test_a_server_without_room_is_asked_again_and_an_error_is_an_answer(tmp_path: Path) -> None:
    lines = tmp_path / "in"
    lines.write_bytes(prompts(waits=[429, 503, 200], stays=[429], lacks=[404]))
    with serving() as server, PartialResults(tmp_path / "out") as results:
        await run(server.address, lines, results, (0.0, 0.0))
    ends = {one["custom_id"]: one for one in written(tmp_path / "out")}
    assert {name: one["response"]["status_code"] for name, one in ends.items()} == {
        "waits": 200,
        "stays": 429,
        "lacks": 404,
    }
    assert ends["waits"]["error"] is None
    assert ends["lacks"]["error"] == {"code": "404", "message": "refused lacks"}
    assert ends["lacks"]["response"]["body"]["error"]["type"] == "t"
    assert sorted(body["prompt"] for _, body in server.seen) == ["lacks", *["stays"] * 3, *["waits"] * 3]


async def test_a_lost_server_ends_the_run_and_its_requests_have_no_result(tmp_path: Path) -> None:
    lines = tmp_path / "in"
    lines.write_bytes(prompts(a=[200]))
    with serving() as server:
        address = server.address
    with PartialResults(tmp_path / "out") as results:
        with pytest.raises(RequestError, match=r"the server is lost .*; the same command goes on"):
            await run(address, lines, results, (0.0,))
        assert not results.done


async def test_a_server_that_redirects_ends_the_run_at_once(tmp_path: Path) -> None:
    lines = tmp_path / "in"
    lines.write_bytes(prompts(a=[307]))
    with serving() as server, PartialResults(tmp_path / "out") as results:
        with pytest.raises(RequestError, match=r"^HTTP 307: the server redirects to .*; allowed: the --url"):
            await run(server.address, lines, results, (60.0,))
        assert not results.done
    assert len(server.seen) == 1


def test_files_behind_urls_and_requests_of_low_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving() as server:
        at = f"http://{server.address}"
        mine = line("mine", body={"prompt": "p", "priority": -1})
        other = line("other", url="/v1/messages", body={"prompt": "q"})
        server.files["/in"] = b"\n".join([prompts(low=[200]), mine, other, b"nothing"])
        words = ["run-batch", "-i", f"{at}/in", "-o", f"{at}/out?signed=1", "--url", f"{at}/v1"]
        assert main(words) == 0
    ends = [json.loads(one) for one in server.files["/out?signed=1"].splitlines()]
    sent = {one["custom_id"]: one["response"]["body"]["echo"] for one in ends if one["response"]}
    assert {name: body.get("priority") for name, body in sent.items()} == {
        "low": 4,
        "mine": -1,
        "other": None,
    }
    assert {one["response"]["request_id"] for one in ends if one["response"]} == {
        name for name, _ in server.seen
    }
    assert [one["error"]["line"] for one in ends if one["error"]] == [4]
    assert f"4 requests, 1 with an error: {at}/out?signed=1\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_read_once_and_a_link_leads_to_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("target")
    Path("target").write_text("old")
    reader, writer = os.pipe()
    os.write(writer, prompts(a=[200], b=[200]))
    os.close(writer)
    with serving() as server:
        words = ["run-batch", "-i", f"/dev/fd/{reader}", "-o", "link", "--url", f"http://{server.address}"]
        assert main(words) == 0
    os.close(reader)
    assert sorted(one["custom_id"] for one in written(Path("target"))) == ["a", "b"]
    assert Path("link").is_symlink()


def test_an_input_that_loses_lines_leaves_the_output_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_bytes(prompts(a=[200], b=[200]))
    Path("out").write_text("old")

    def digest_and_cut(path: Path) -> str:
        digest = digest_of(path)
        path.write_bytes(prompts(a=[200]))
        return digest

    monkeypatch.setattr(run_batch, "digest_of", digest_and_cut)
    with serving() as server:
        assert main(["run-batch", "-i", "in", "-o", "out", "--url", f"http://{server.address}"]) == 2
    assert "--input-file is 'in', which has lost lines; allowed: a file that stays" in capsys.readouterr().err
    assert Path("out").read_text() == "old"


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["-i", "in"], "--output-file is not given; allowed: a path or a URL"),
        (["-i", "in", "-o", "x/out"], "--output-file is 'x/out'; allowed: in a folder that is there"),
        (["-i", "in", "-o", "pipe"], "--output-file is 'pipe'; allowed: a file, or a new name"),
        (["-i", "in", "-o", "o" * 300], "allowed: in a folder to write to (File name too long)"),
        (["-i", "i" * 300, "-o", "out"], "allowed: a file of requests (File name too long)"),
        (["-i", "none", "-o", "out"], "--input-file is 'none'; allowed: a file of requests"),
        (["-i", "in", "-o", "out", "--url", "http://h", "-tp", "2"], "--tensor-parallel-size is given with"),
        (["-i", "in", "-o", "out", "--uds", "/tmp/a"], "--uds is '/tmp/a'; allowed: none where"),
        (["-i", "in", "-o", "out", "--ssl-ca-certs", "a"], "--ssl-ca-certs is 'a'; allowed: none where"),
    ],
)
def test_wrong_flags_are_refused_before_work(
    words: list[str],
    refusal: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_bytes(line())
    os.mkfifo("pipe")
    assert main(["run-batch", *words]) == 2
    assert refusal in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "pipe"]


def test_a_file_has_flags_of_the_server_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3")
    config = tmp_path / "batch.yaml"
    config.write_text(
        "input-file: in\nmax-inflight: 3\nmodel: org/m\nmax-model-len: 128\nmax-num-seqs: 5\n"
        "prefill-workers: 2\ndecode-workers: 1\ncpu-bind: none\ndisable-log-stats: true\n"
    )
    args = parse(["run-batch", "--config", str(config), "--max-num-seqs=7", "--enable-dbo=false"])
    assert (args.input_file, args.max_inflight) == ("in", 3)
    serve = _serve_args(args)
    assert (serve.model, serve.max_model_len, serve.max_num_seqs) == ("org/m", 128, 7)
    assert (serve.prefill_workers, serve.decode_workers, serve.mixed) == (2, 1, 0)
    assert (serve.cpu_bind, serve.port) == ("none", 0)
    assert main(["run-batch", "--config", str(config), "-o", "out", "--url", "http://h"]) == 2
    assert (
        "baton run-batch: model is given with --url; allowed: MODEL and flags of" in capsys.readouterr().err
    )


def test_a_mistyped_flag_is_one_of_the_batch_or_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in (
        ("--output-fil x", "--output-file"),
        ("--max-num-seq=3 --mixed 1", "--max-num-seqs"),
    ):
        with pytest.raises(SystemExit):
            parse(["run-batch", *words.split()])
        said = f"baton run-batch: error: unrecognized arguments: {words.split()[0]}; did you mean {meant}?"
        assert said in capsys.readouterr().err
    of_server = ["org/m", '--hf-overrides={"a": 1}', "--no-enable-prefix-caching"]
    assert parse(["run-batch", *of_server]).serve_words == of_server
