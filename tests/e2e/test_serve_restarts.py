"""`baton serve` goes on whichever of its processes ends, and tells what it starts again, and when."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from baton import LLM
from tests.e2e.browsing import browsing
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.dashboard_pages import visiting
from tests.e2e.processes import (
    BRISK,
    FLOAT32,
    NO_GRAMMARS,
    READY_WITHIN_S,
    SMALL,
    STOP_WITHIN_S,
    Cluster,
    Family,
    children_of,
    family_of,
    serving,
    starting,
    until,
)
from tests.tiers import exhaustive

NUM_KILLS = 4
SEES_WITHIN_S = 60.0
TWO_MIXED = ("--prefill-workers", "0", "--decode-workers", "0", "--mixed", "2", *NO_GRAMMARS)


def kill_whenever_it_runs(cluster: Cluster, title: str, times: int) -> None:
    """Kill the process of this title as soon as it is there, so many times in a row."""
    seen: set[int] = set()
    for _ in range(times):
        until(lambda: bool(set(cluster.pids_of(title)) - seen), SEES_WITHIN_S, f"another {title}")
        (pid,) = set(cluster.pids_of(title)) - seen
        seen.add(pid)
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: pid not in children_of(cluster.process.pid), SEES_WITHIN_S, "its end")


def absent_workers(cluster: Cluster) -> list[dict[str, Any]]:
    state = httpx.get(f"http://{cluster.http_address}/debug/cluster", timeout=SEES_WITHIN_S).json()
    absent: list[dict[str, Any]] = state["absent_workers"]
    return absent


def test_a_worker_that_dies_again_and_again_is_awaited_while_the_others_serve(
    tmp_path: Path, llm: LLM
) -> None:
    roles = ("--prefill-workers", "1", "--decode-workers", "0", "--mixed", "1", "--share-weights")
    prompt, params = draw_prompt(40, seed=1), greedy(12)
    (expected,) = llm.generate(prompt, params, use_tqdm=False)
    with serving(tmp_path, *SMALL[:2], *FLOAT32, *BRISK, *NO_GRAMMARS, *roles, "--split", "auto") as cluster:
        base = f"http://{cluster.http_address}"
        kill_whenever_it_runs(cluster, "baton prefill-worker", NUM_KILLS)
        until(
            lambda: [one["state"] for one in absent_workers(cluster)] == ["restarting"],
            SEES_WITHIN_S,
            "a worker that waits",
        )
        (absent,) = absent_workers(cluster)
        assert (absent["worker_id"], absent["role"]) == ("prefill-0", "prefill")
        assert (absent["num_restarts"], absent["end"]) == (NUM_KILLS - 1, "was killed by SIGKILL")
        assert 0 < absent["retry_in_s"] <= 2.0 ** (NUM_KILLS - 1)
        health = httpx.get(f"{base}/health", timeout=SEES_WITHIN_S)
        told = r"prefill-0 was killed by SIGKILL and is started again in \d+ s\n"
        assert health.status_code == 200
        assert re.fullmatch(told, health.text)
        metrics = httpx.get(f"{base}/metrics", timeout=SEES_WITHIN_S).text
        assert 'baton_workers{role="prefill",state="restarting"} 1.0' in metrics
        assert f'baton_worker_restarts_total{{worker="prefill-0"}} {NUM_KILLS - 1:.1f}' in metrics
        assert answer(cluster.stub.Generate(ask(prompt, params)))[0] == expected.outputs
        with browsing() as browser, visiting(browser, cluster) as page:
            badge = page.locator(
                "[data-worker=prefill-0] .badge.restarting, [data-worker=prefill-0] .loading"
            )
            expect(badge).to_have_text(re.compile(r"restarting in \d+ s|loading"))
            expect(page.locator("[data-worker=prefill-0]")).to_contain_text("was killed by SIGKILL")
        assert cluster.process.poll() is None
        until(lambda: len(cluster.info().workers) == 2, READY_WITHIN_S, "the worker again")
        assert httpx.get(f"{base}/health").text == ""
        waits = re.findall(r"prefill-0 was killed by SIGKILL; it is started again in (\d+) s", read(cluster))
        assert waits == [str(2**number) for number in range(NUM_KILLS)]
        inodes = {shared_weights(cluster, f"baton {role}-worker") for role in ("prefill", "mixed")}
        assert len(inodes) == 1


def shared_weights(cluster: Cluster, title: str) -> str:
    """Return the inode of the weights that a worker shares."""
    (pid,) = cluster.pids_of(title)
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    (inode,) = {line.split()[4] for line in maps if "memfd:baton-weights-" in line}
    return inode


@contextmanager
def port_after_a_free_one() -> Iterator[int]:
    """Take a port; the one before it is free, and none that the system gives to whoever asks for any."""
    for _ in range(100):
        port = random.randrange(15_000, 30_000)
        if not is_free(port - 1):
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            yield port
            return
    raise AssertionError("no free port beside another one")


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def read(cluster: Cluster) -> str:
    return cluster.log.read_text()


def test_a_router_that_dies_comes_back_at_its_addresses_and_its_workers_with_it(
    tmp_path: Path, llm: LLM
) -> None:
    prompt, params = draw_prompt(40, seed=2), greedy(12)
    (expected,) = llm.generate(prompt, params, use_tqdm=False)
    with serving(tmp_path, *SMALL, *FLOAT32, *BRISK, *NO_GRAMMARS) as cluster:
        workers = set(children_of(cluster.process.pid)) - set(cluster.pids_of("baton router"))
        (router,) = cluster.pids_of("baton router")
        os.kill(router, signal.SIGKILL)
        until(lambda: read(cluster).count("  gRPC ") == 2, READY_WITHIN_S, "another banner")
        assert "the router was killed by SIGKILL; it is started again in 1 s" in read(cluster)
        assert answer(cluster.stub.Generate(ask(prompt, params), wait_for_ready=True))[0] == expected.outputs
        assert httpx.get(f"http://{cluster.http_address}/health").status_code == 200
        assert workers <= set(children_of(cluster.process.pid))


def test_a_setting_that_one_worker_refuses_is_told_while_the_others_serve(tmp_path: Path) -> None:
    with (
        port_after_a_free_one() as port,
        starting(tmp_path, *SMALL[:2], *TWO_MIXED, "--metrics-port", str(port - 1)) as cluster,
    ):
        cluster.wait_until_serving()
        until(lambda: any(one["reason"] for one in absent_workers(cluster)), READY_WITHIN_S, "the reason")
        (absent,) = absent_workers(cluster)
        assert absent["worker_id"] == "mixed-1"
        assert absent["end"] == "ended with exit code 2"
        assert str(port) in absent["reason"]
        health = httpx.get(f"http://{cluster.http_address}/health")
        assert health.status_code == 200
        assert str(port) not in health.text


@pytest.mark.parametrize(
    ("begin", "pause_s"),
    [
        (starting, 1.0),
        exhaustive(starting, 0.0),
        exhaustive(serving, 0.05),
    ],
)
def test_two_signals_to_stop_leave_no_process(begin: Any, pause_s: float, tmp_path: Path) -> None:
    with begin(tmp_path, *TWO_MIXED) as cluster:
        pid = cluster.process.pid
        until(lambda: len(children_of(pid)) == 3, SEES_WITHIN_S, "a router and two workers")
        with Family(family_of(pid)) as family:
            cluster.process.send_signal(signal.SIGTERM)
            time.sleep(pause_s)
            cluster.process.send_signal(signal.SIGINT)
            cluster.process.wait(STOP_WITHIN_S)
            family.wait_until_gone(within_s=20.0)
        assert not children_of(pid)
