"""A person's view of `baton serve`: progress, a banner once prompts are served, and a silent end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import (
    BATON,
    NO_GRAMMARS,
    ONE_MIXED,
    PATIENT,
    READY_WITHIN_S,
    SMALL,
    STOP_WITHIN_S,
    Cluster,
    children_of,
    starting,
    until,
)
from tests.tiers import exhaustive

TROUBLE = re.compile(r"WARNING|ERROR|Traceback|Exception|leaked|never awaited")
PROMPT = {"prompt": "import os", "max_tokens": 2}
BENCH_FLAGS = ("--num-prompts", "2", "--random-input-len", "8", "--random-output-len", "2", "--disable-tqdm")
STEPS = (
    "listening at ",
    " loading baton-docs-5m",
    "weights are read",
    "warming up",
    " registers at ",
    " ready",
)


def lines_with(cluster: Cluster, text: str) -> list[str]:
    return [line for line in cluster.log.read_text().splitlines() if text in line]


def assert_told_what_loads(cluster: Cluster, http: httpx.Client, command: tuple[str, ...]) -> None:
    """Nobody is served yet: clients and commands are told why, and clients when to come again."""
    early, health = http.post("/v1/completions", json=PROMPT), http.get("/health")
    assert (early.status_code, health.status_code) == (503, 503)
    loading = "0 of 2 workers are registered: decode-1 is loading, prefill-0 is loading"
    assert early.json()["error"]["message"] == f"no decode worker is registered; {loading}"
    assert int(early.headers["retry-after"]) >= 1
    assert int(health.headers["retry-after"]) >= 1
    assert health.text == "no worker prefills: prefill-0 is loading\n"
    assert lines_with(cluster, "serving ") == []
    ended = subprocess.run(command, capture_output=True, text=True, timeout=READY_WITHIN_S, check=False)
    assert ended.returncode == 1
    assert f"no decode worker is registered; {loading}" in ended.stderr
    bench = (*BATON, "bench", "serve", "--base-url", f"http://{cluster.http_address}", *BENCH_FLAGS)
    ended = subprocess.run(bench, capture_output=True, text=True, timeout=READY_WITHIN_S, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "all 2 requests failed: there is nothing to measure" in ended.stderr
    assert "2 of 2 requests failed: " in ended.stderr
    assert loading in ended.stderr


def test_everybody_is_told_what_loads_until_the_banner_says_where_and_ctrl_c_warns_of_nothing(
    tmp_path: Path,
) -> None:
    with (
        starting(tmp_path, *SMALL, process_group=0) as cluster,
        httpx.Client(base_url=f"http://{cluster.http_address}") as http,
    ):
        pid = cluster.process.pid
        until(lambda: len(children_of(pid)) == 3, READY_WITHIN_S, "router and workers")
        workers = set(children_of(pid)) - set(cluster.pids_of("baton router"))
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        command = (*BATON, "complete", "--address", cluster.address, "--max-tokens", "2", "import os")
        assert_told_what_loads(cluster, http, command)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        waiting = (*command, "--wait", str(READY_WITHIN_S))
        subprocess.run(waiting, capture_output=True, timeout=2 * READY_WITHIN_S, check=True)
        until(lambda: bool(lines_with(cluster, "  gRPC ")), READY_WITHIN_S, "the banner")
        assert http.get("/health").status_code == 200
        served = http.post("/v1/completions", json=PROMPT, timeout=READY_WITHIN_S)
        assert served.status_code == 200
        assert served.json()["model"] == "baton-docs-5m"
        (line,) = lines_with(cluster, "serving ")
        assert "serving baton-docs-5m with 1 prefill worker and 1 decode worker, ready after" in line
        told = cluster.log.read_text()
        shown = dict(re.findall(r"^  (\S.*?)  +(\S+)$", told, re.MULTILINE))
        url = f"http://{cluster.http_address}"
        assert shown["gRPC"] == cluster.address
        assert shown["OpenAI base URL"] == f"{url}/v1"
        for name in ("chat page", "dashboard"):
            assert httpx.get(shown[name]).status_code == 200
        places = [told.index(step) for step in STEPS]
        assert places == sorted(places)
        os.killpg(pid, signal.SIGINT)  # as a terminal does
        assert cluster.process.wait(STOP_WITHIN_S) in (0, 130)
        assert_no_trouble(cluster.log.read_text())


def assert_no_trouble(told: str) -> None:
    """A cluster was ready, and nothing that it said is a warning."""
    assert "  gRPC " in told
    assert not TROUBLE.search(told), told
    assert "not ready" not in told


@pytest.mark.parametrize(
    "after_s",
    [
        1.5,
        exhaustive(0.3),
        exhaustive(5.0),
    ],
)
def test_ctrl_c_while_it_starts_leaves_nothing_but_progress(after_s: float, tmp_path: Path) -> None:
    told = interrupted(tmp_path / "log", lambda text: False, after_s)
    assert not TROUBLE.search(told), told


@pytest.mark.exhaustive
def test_a_stop_by_sigterm_warns_of_nothing(tmp_path: Path) -> None:
    assert_no_trouble(
        interrupted(tmp_path / "log", lambda text: "  gRPC " in text, READY_WITHIN_S, signal.SIGTERM)
    )


def interrupted(
    log: Path, is_due: Callable[[str], bool], within_s: float, sign: signal.Signals = signal.SIGINT
) -> str:
    """Run `baton serve`, signal it when it is due, as a terminal does Ctrl-C, and return what it said."""
    command = (*BATON, "serve", "--port", "0", "--grpc-port", "0", *PATIENT, *ONE_MIXED, *NO_GRAMMARS)
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    until(lambda: name_of(process) == "baton serve", READY_WITHIN_S, "a command that can be stopped")
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not is_due(log.read_text()):
        time.sleep(0.05)
    if sign is signal.SIGINT:
        os.killpg(process.pid, sign)
    else:
        process.send_signal(sign)
    code = process.wait(STOP_WITHIN_S)
    assert code in (0, 130), (code, log.read_text())
    return log.read_text()


def name_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0")
