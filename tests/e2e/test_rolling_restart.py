"""Every worker is told to stop and started again, one after the other: no client loses a token."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton import LLM
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import FLOAT32, KV_CACHE_BYTES, NO_GRAMMARS, Cluster, serving, until

FLAGS = (
    *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--min-split-tokens", "32"),
    *("--decode-workers", "2", "--shutdown-timeout", "1", *FLOAT32, *NO_GRAMMARS),
)
NUM_CLIENTS = 2
PARAMS = greedy(100)
PAUSE_S = 0.3
"""Between a client's requests: a worker that starts needs a core, too."""
RESTARTED_WITHIN_S = 60.0
STOPPED = " was told to stop; it is started again"


@contextmanager
def load(cluster: Cluster, prompts: list[list[int]], expected: list[list[int]]) -> Iterator[list[int]]:
    """Ask on until the block is left, and check every answer; gives the number of answers of each client."""
    is_over = threading.Event()
    num_answers = [0] * len(prompts)

    def ask_on(number: int) -> None:
        while not is_over.is_set():
            (output,), _ = answer(cluster.stub.Generate(ask(prompts[number], PARAMS)))
            assert output.token_ids == expected[number]
            num_answers[number] += 1
            is_over.wait(PAUSE_S)

    with ThreadPoolExecutor(len(prompts)) as pool:
        clients = [pool.submit(ask_on, number) for number in range(len(prompts))]
        try:
            yield num_answers
        finally:
            is_over.set()
    for client in clients:
        client.result()


def restart(cluster: Cluster, pid: int, num_workers: int, num_answers: list[int]) -> None:
    """Tell a worker to stop, and wait for its successor, and for an answer to each client since."""
    ends, starts = cluster.log.read_text().count(STOPPED), cluster.log.read_text().count(" joined: ")
    os.kill(pid, signal.SIGTERM)
    until(lambda: cluster.log.read_text().count(STOPPED) > ends, 60.0, "the worker's end")
    until(lambda: cluster.log.read_text().count(" joined: ") > starts, RESTARTED_WITHIN_S, "its successor")
    until(lambda: len(cluster.info().workers) == num_workers, RESTARTED_WITHIN_S, "all workers")
    before = list(num_answers)
    until(lambda: all(now > then for now, then in zip(num_answers, before, strict=True)), 60.0, "answers")


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_no_request_is_lost_while_every_worker_is_restarted(tmp_path: Path, llm: LLM) -> None:
    prompts = [draw_prompt(30 + 180 * number, seed=number) for number in range(NUM_CLIENTS)]
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    expected = [list(output.outputs[0].token_ids) for output in outputs]
    with serving(tmp_path / "c", *FLAGS) as cluster:
        with load(cluster, prompts, expected) as num_answers:
            roles = ("prefill", "decode")
            workers = [pid for role in roles for pid in cluster.pids_of(f"baton {role}-worker")]
            assert len(workers) == 3
            for pid in workers:
                restart(cluster, pid, len(workers), num_answers)
        cluster.wait_until_idle()
        assert "died" not in cluster.log.read_text()
