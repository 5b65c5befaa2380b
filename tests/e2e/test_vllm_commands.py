"""`baton` under the flags and variables of vLLM, as processes: serve, chat and complete."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from baton.config.engine_args import BUNDLED_MODEL, BUNDLED_MODEL_NAME
from tests.e2e.processes import BATON, ONE_MIXED, READY_WITHIN_S, Cluster, children_of, stop, until

FLAGS = (
    *("--model", BUNDLED_MODEL, "-tp", "1", "--max_model_len", "512", "--no-enforce-eager", "--seed", "42"),
    *("--disable-log-stats", "--uvicorn-log-level", "warning", "--max-num-seqs", "4"),
)
Serving = tuple[httpx.Client, subprocess.Popen[bytes], str]
COMPLETION = {"prompt": "The os module", "max_tokens": 3}
KEY = {"authorization": "Bearer secret"}


@contextmanager
def serving_at(folder: Path, *flags: str, **variables: str) -> Iterator[Serving]:
    """A client of `baton serve` at a Unix socket, from the line on that says that it serves; and its log."""
    path, log = folder / "http", folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*BATON, "serve", "--uds", str(path), "--grpc-port", "0", *ONE_MIXED, *flags],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stderr=file,
        )
    try:
        until(lambda: "serving " in log.read_text(), READY_WITHIN_S, "it serves")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://baton") as client:
            yield client, process, log.read_text()
    finally:
        code = stop(process)
    assert code == 0
    assert not path.exists()


@pytest.mark.exhaustive
def test_a_key_in_the_environment_closes_a_server_whose_router_comes_back_at_its_socket(
    tmp_path: Path,
) -> None:
    variables = {"VLLM_API_KEY": "secret", "VLLM_PORT": "1", "VLLM_CPU_KVCACHE_SPACE": "0.0625"}
    with serving_at(tmp_path, *FLAGS, **variables) as (client, process, log):
        answer = client.post("/v1/completions", json=COMPLETION, headers=KEY, timeout=60.0)
        assert answer.status_code == 200, answer.text
        assert client.post("/v1/completions", json=COMPLETION).status_code == 401
        assert client.get("/v1/models", headers=KEY).json()["data"][0]["id"] == BUNDLED_MODEL
        (pid,) = [pid for pid, title in children_of(process.pid).items() if title == "baton router"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: _answers(client, tmp_path / "http"), READY_WITHIN_S, "the router is back")
    given = "--disable-log-stats, --uvicorn-log-level"
    assert f"these flags change nothing here: {given}\n" in log
    unread = "these variables of the environment are not read: VLLM_PORT (instead: --port and --grpc-port)\n"
    assert unread in log
    assert re.search(r"KV cache +0\.06\d GiB", log)


def _answers(client: httpx.Client, path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)):
            return False
    try:
        return client.post("/v1/completions", json=COMPLETION, headers=KEY, timeout=30.0).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("flags", [(), ("--chat",)])
def test_complete_asks_any_openai_server(cluster: Cluster, flags: tuple[str, ...]) -> None:
    url = f"http://{cluster.http_address}/v1"
    command = [
        *BATON,
        "complete",
        "--url",
        url,
        "--max-tokens",
        "4",
        "--temperature",
        "0",
        *flags,
        "-q",
        "os",
    ]
    over_http = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    command[4:6] = ["--address", cluster.address]
    over_grpc = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert over_http.startswith("> os\n")
    assert over_http.strip() == over_grpc[: over_grpc.index("\n[")].strip()
    cluster.wait_until_idle()


def test_chat_asks_any_openai_server_one_message_or_many(cluster: Cluster) -> None:
    url = f"http://{cluster.http_address}/v1"
    command = [
        *BATON,
        "chat",
        "--url",
        url,
        "--max-tokens",
        "4",
        "--temperature",
        "0",
        "--system",
        "be brief",
    ]
    quick = subprocess.run([*command, "-q", "hi"], capture_output=True, text=True, timeout=60, check=True)
    scripted = subprocess.run(
        command, input="hi\n/reset\nhi\n", capture_output=True, text=True, timeout=60, check=True
    )
    (text,) = re.findall(r"(?s)(.*)\n\[TTFT .* 4 tokens in .*\]\n", quick.stdout)
    assert scripted.stdout.count(f"> hi\n{text}\n[TTFT") == 2
    cluster.wait_until_idle()


def test_an_error_of_a_server_ends_complete_with_its_message(cluster: Cluster) -> None:
    url = f"http://{cluster.http_address}/v1"
    for more, said in (
        (("--model-name", "none"), "model is 'none'"),
        (
            ("--url", "http://127.0.0.1:1/v1"),
            "url is 'http://127.0.0.1:1/v1', where no OpenAI server answers",
        ),
    ):
        command = [*BATON, "complete", "--url", url, *more, "os"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        assert said in ended.stderr
        assert BUNDLED_MODEL_NAME in cluster.info().model
