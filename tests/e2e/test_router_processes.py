"""A router of two processes at one port: one of them may be killed, and limits hold over both."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.e2e.processes import BRISK, NO_GRAMMARS, ONE_MIXED, Cluster, children_of, serving, stop, until

NUM_TOKENS = 600
WITHIN_S = 60.0
LIMIT = 30
KEYS = ("one", "other")
FLAGS = (
    *(*ONE_MIXED, *BRISK, *NO_GRAMMARS, "--router-processes", "2", "--split", "auto", "--open-metrics"),
    *(part for key in KEYS for part in ("--api-key", key)),
    *("--rate-limit", f"requests={LIMIT}"),
)


def by_process(cluster: Cluster, metric: str) -> Counter[str]:
    """Return the sums of a metric by process."""
    page = httpx.get(f"http://{cluster.http_address}/metrics", timeout=WITHIN_S).text
    sums: Counter[str] = Counter()
    for process, value in re.findall(rf'^{metric}{{router_process="(.)".*}} (.+)$', page, re.MULTILINE):
        sums[process] += int(float(value))
    return sums


def ask(cluster: Cluster, key: str, num_tokens: int) -> tuple[int, int]:
    """Ask over a connection of its own; returns the status, and the tokens of a whole answer or 0."""
    body = {"prompt": "The os module", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    url, headers = f"http://{cluster.http_address}/v1/completions", {"authorization": f"Bearer {key}"}
    try:
        reply = httpx.post(url, json=body, headers=headers, timeout=WITHIN_S)
    except (httpx.RemoteProtocolError, httpx.NetworkError):
        return 200, 0
    found = re.search(r'"completion_tokens":(\d+)', reply.text)
    return reply.status_code, int(found[1]) if found and "[DONE]" in reply.text else 0


def check_that_either_shows_the_requests_of_both(cluster: Cluster) -> None:
    """Each call goes over a connection of its own, so that either process may answer it."""
    debug, headers = f"http://{cluster.http_address}/debug/requests", {"authorization": f"Bearer {KEYS[1]}"}
    url = f"http://{cluster.http_address}/v1/completions"
    names = {f"shown-{letter}" for letter in "abcdefgh"}
    for name in names:
        body = {"prompt": "The os module", "max_tokens": 1}
        httpx.post(url, json=body, headers=headers | {"x-request-id": name}, timeout=WITHIN_S)
    for _ in names:
        listed = [one["request_id"] for one in httpx.get(debug, headers=headers).json()["requests"]]
        assert set(listed) == names
        assert httpx.get(f"{debug}/{listed[0]}", headers=headers).json()["num_output_tokens"] == 1


def check_that_either_shows_the_counts_of_both(cluster: Cluster) -> None:
    debug, headers = f"http://{cluster.http_address}/debug", {"authorization": f"Bearer {KEYS[1]}"}
    num_finished = by_process(cluster, "vllm:request_success_total").total()
    for _ in range(8):
        state = httpx.get(f"{debug}/cluster", headers=headers).json()
        recent = httpx.get(f"{debug}/history", headers=headers).json()["latencies"]
        assert state["totals"]["num_finished"] == recent["num_finished"] == num_finished


def test_limits_hold_over_both_and_a_killed_process_takes_its_own_streams_alone(tmp_path: Path) -> None:
    with serving(tmp_path, *FLAGS, "--files-directory", str(tmp_path / "files")) as cluster:
        until(lambda: len(by_process(cluster, "baton_workers")) == 2, WITHIN_S, "both processes")
        began_s = time.monotonic()
        statuses = Counter(ask(cluster, KEYS[0], 1)[0] for _ in range(2 * LIMIT))
        num_refilled = (time.monotonic() - began_s) * LIMIT / 60
        # Each process alone would let as many pass; a few do before the other one has heard of the last ones.
        assert LIMIT <= statuses[200] < 1.5 * LIMIT + num_refilled
        assert set(statuses) == {200, 429}
        assert min(by_process(cluster, "vllm:request_success_total").values()) > 0
        assert ask(cluster, "none", 1) == (401, 0)
        check_that_either_shows_the_requests_of_both(cluster)
        check_that_either_shows_the_counts_of_both(cluster)

        files, headers = f"http://{cluster.http_address}/v1/files", {"authorization": f"Bearer {KEYS[1]}"}
        made = httpx.post(
            files, headers=headers, data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")}
        )
        for _ in range(8):  # each over a connection of its own, which either process may get
            (listed,) = httpx.get(files, headers=headers).json()["data"]
            assert listed == made.json()

        _, second = cluster.pids_of("baton router")
        with ThreadPoolExecutor(16) as threads:
            asked: list[Future[tuple[int, int]]] = []

            def are_both_asked() -> bool:
                asked.append(threads.submit(ask, cluster, KEYS[1], NUM_TOKENS))
                return +by_process(cluster, "baton_open_requests") >= Counter("01")

            until(are_both_asked, WITHIN_S, "a stream at each process")
            os.kill(second, signal.SIGKILL)
            answers = Counter(one.result() for one in asked)
        assert set(answers) == {(200, 0), (200, NUM_TOKENS)}

        until(
            lambda: by_process(cluster, "baton_workers")["1"] == 1, WITHIN_S, "a new process, and its worker"
        )
        children = children_of(cluster.process.pid)
        assert stop(cluster.process) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)
