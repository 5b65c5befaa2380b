"""Flags of `baton bench`: what each takes, and which of them do not go together."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from baton.cli import main
from baton.commands.bench_arguments import BENCH_ACTIONS
from baton.commands.bench_plan import read_plan
from baton.commands.cli_arguments import parse
from baton.config.engine_args import BUNDLED_MODEL
from baton_bench.serving import GrpcServer, HttpServer


@pytest.mark.parametrize("benchmark", [action.name for action in BENCH_ACTIONS])
def test_every_benchmark_tells_its_flags(benchmark: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", benchmark, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    action = next(action for action in BENCH_ACTIONS if action.name == benchmark)
    assert [flag.name for flag in action.flags if flag.name not in said] == []
    assert ("--kv-cache-memory-bytes" in said) is action.is_offline


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "serve --request-rate 1000000000000",
            "--request-rate is '1000000000000'; allowed: inf, or a number over 0 such as 0.5, 4 or 1e3",
        ),
        ("serve --request-rate 0", "--request-rate is '0'; allowed: inf, or a number over 0"),
        ("serve --goodput ttft", "--goodput is 'ttft'; allowed: ttft:MS, tpot:MS or e2el:MS"),
        (
            "serve --goodput ttft:1 ttft:2",
            "--goodput is 'ttft:1 ttft:2'; allowed: each of ttft, tpot, e2el once",
        ),
        ("serve --base-url ftp://x", "--base-url is 'ftp://x'; allowed: http://host:port"),
        ("serve --dataset-name trace", "--dataset-path is ''; allowed: a file"),
        ("serve --dataset-path x", "--dataset-path is 'x'; allowed: none for random, which is sampled"),
        ("serve --ramp-up-start-rps 1", "--ramp-up-strategy is not given; allowed: linear or exponential"),
        ("serve --ramp-up-strategy linear --ramp-up-start-rps 1", "--ramp-up-end-rps is not given"),
        (
            "serve --ramp-up-strategy linear --request-rate 3",
            "--request-rate is 3; allowed: nothing beside --ramp-up-strategy",
        ),
        ("serve --max-concurrency 2147483647", "--max-concurrency is 2147483647; allowed: up to "),
        (
            "serve --save-result --result-dir /dev/null/x",
            "--result-dir is '/dev/null/x'; allowed: what leads to a folder to write to, which is made if it "
            "is missing; /dev/null/x: Not a directory",
        ),
        (
            "serve --save-result --result-filename /dev/null/x/y.json",
            "--result-filename is '/dev/null/x/y.json'; allowed: what leads to a folder to write to",
        ),
        ('serve --extra-body {"n":2}', "--extra-body has n 2; allowed: 1, for an answer is one sequence"),
        ("serve --plot x.gif", "--plot is 'x.gif'; allowed: a file ending with .png"),
        ("serve --backend baton-grpc --insecure", "--insecure is True; allowed: nothing with baton-grpc"),
        ("serve --insecure --ssl-ca-certs x", "--ssl-ca-certs is 'x'; allowed: nothing beside --insecure"),
        ("serve --tokenizer-mode mistral", "--tokenizer-mode is 'mistral'; allowed: "),
        ("serve --backend baton-grpc --endpoint /x", "--endpoint is '/x'; allowed: nothing with baton-grpc"),
        (
            "serve --dataset-name trace --dataset-path x --trace-divisor 100",
            "--trace-divisor is 100; allowed: a divisor of 512",
        ),
        ("sweep --num-prompts 3", "--request-rates is not given; allowed: it, --max-concurrencies, or both"),
        ("throughput --enable-eplb", "--enable-eplb is True"),
        (
            "latency --output-json /nowhere/x",
            "--output-json is '/nowhere/x'; allowed: a file that can be written (/nowhere is no folder)",
        ),
        ("throughput --output-json /tmp", "--output-json is '/tmp'; allowed: a file that can be written ("),
        ("serve --save-result --result-filename /tmp", "--result-filename is '/tmp'; allowed: a file"),
    ],
)
def test_values_that_cannot_be_are_refused(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments.split()]) == 2
    assert said in capsys.readouterr().err


def test_sampling_flags_are_fields_of_every_request() -> None:
    flags = "--presence-penalty 1 --frequency-penalty -1 --repetition-penalty 1.5 --logprobs 3 --insecure"

    def asked(backend: str) -> Mapping[str, object]:
        url = ("--base-url", "https://h:1", "--trust-remote-code", "--tokenizer-mode", "auto")
        plan = read_plan(parse(["bench", "serve", "--backend", backend, *url, *flags.split()]))
        assert isinstance(plan.server, HttpServer)
        assert plan.server.origin.tls is not None
        assert plan.server.origin.tls.verify_mode is ssl.CERT_NONE
        return plan.defaults.sampling

    common = {
        "temperature": 0.0,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.5,
    }
    assert asked("openai") == {**common, "logprobs": 3}
    assert asked("openai-chat") == {**common, "logprobs": True, "top_logprobs": 3}


def test_a_configuration_file_stands_in_for_flags(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text("num-prompts: 7\ngoodput: [ttft:200, tpot:50]\nseed: 3\n")
    args = parse(["bench", "serve", "--config", str(path), "--seed", "4"])
    assert (args.num_prompts, args.goodput, args.seed) == (7, ("ttft:200", "tpot:50"), 4)
    path.write_text("batch-size: 2\nblock-size: 16\n")
    args = parse(["bench", "latency", "--config", str(path)])
    assert (args.batch_size, args.block_size) == (2, 16)


def test_a_server_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--port", "1", "--num-prompts", "1"]) == 1
    assert "the server does not list its models: " in capsys.readouterr().err


def test_the_folder_of_results_is_made_before_a_server_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "b"
    results = ["--save-result", "--result-dir", str(folder), "--result-filename", "c/result.json"]
    assert main(["bench", "serve", "--port", "1", "--num-prompts", "1", *results]) == 1
    assert (folder / "c").is_dir()
    assert "the server does not list its models: " in capsys.readouterr().err


@pytest.mark.parametrize(("backend", "port"), [("openai", 8000), ("openai-chat", 8000), ("baton-grpc", 8100)])
def test_the_port_is_that_of_the_protocol_unless_it_is_given(backend: str, port: int) -> None:
    def asked(*flags: str) -> int:
        server = read_plan(parse(["bench", "serve", "--backend", backend, *flags])).server
        return (
            int(server.address.rpartition(":")[2]) if isinstance(server, GrpcServer) else server.origin.port
        )

    assert asked() == port
    assert asked("--port", "9000") == 9000


def test_a_header_stands_in_for_the_one_of_the_key() -> None:
    flags = ["--api-key", "k", "--header", "authorization=Basic x"]
    server = read_plan(parse(["bench", "serve", *flags])).server
    assert isinstance(server, HttpServer)
    assert [(name.lower(), value) for name, value in server.headers.items()] == [("authorization", "Basic x")]


def test_a_chat_without_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    chat = ["serve", "--backend", "openai-chat", "--port", "1", "--num-prompts", "1", "--model", "m"]
    assert main(["bench", *chat]) == 2
    assert "--backend is 'openai-chat', whose prompts are text" in capsys.readouterr().err
    assert main(["bench", *chat, "--token-ids", "--tokenizer", BUNDLED_MODEL]) == 2
