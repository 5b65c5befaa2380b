"""`baton admin update-weights` while streams run at real processes; workers that die come back with them."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.calls import answer, ask, greedy
from tests.e2e.processes import (
    BATON,
    BRISK,
    FLOAT32,
    NO_GRAMMARS,
    READY_WITHIN_S,
    SMALL,
    Cluster,
    serving,
    until,
)
from tests.integration.weight_versions import NUM_TOKENS, PROMPTS, answers_of, write_version

ROLES = ("--prefill-workers", "1", "--decode-workers", "1", "--enable-operator-routes")


def generate(cluster: Cluster, index: int) -> list[int]:
    outputs, _ = answer(cluster.stub.Generate(ask(list(PROMPTS[index]), greedy(NUM_TOKENS))))
    return list(outputs[0].token_ids)


def update(cluster: Cluster, folder: Path) -> subprocess.CompletedProcess[str]:
    command = (*BATON, "admin", "update-weights", str(folder), "--address", cluster.address)
    return subprocess.run(command, capture_output=True, text=True, timeout=READY_WITHIN_S)


@pytest.mark.exhaustive
def test_new_weights_come_to_all_processes_under_load_and_to_one_that_is_started_again(
    tmp_path: Path,
) -> None:
    old_answers, new = answers_of(), write_version(tmp_path / "new")
    new_answers = answers_of(new)
    flags = (*SMALL, *FLOAT32, *BRISK, *NO_GRAMMARS, *ROLES)
    with serving(tmp_path / "fleet", *flags) as cluster, ThreadPoolExecutor(6) as clients:
        assert generate(cluster, 0) == old_answers[0]
        refused = update(cluster, tmp_path / "nowhere")
        assert refused.returncode != 0
        assert "model folder" in refused.stderr
        assert "is missing; allowed: an existing folder" in refused.stderr
        updating = clients.submit(update, cluster, new)
        indices = [number % len(PROMPTS) for number in range(60)]
        answers = clients.map(partial(generate, cluster), indices)
        for index, tokens in zip(indices, answers, strict=True):
            assert tokens in (old_answers[index], new_answers[index])
        assert updating.result().stdout == f"2 workers compute with the weights of {new}\n"
        assert [generate(cluster, index) for index in range(len(PROMPTS))] == new_answers
        for title in ("baton decode-worker", "baton prefill-worker"):
            (pid,) = cluster.pids_of(title)
            os.kill(pid, signal.SIGKILL)
            until(
                lambda title=title, pid=pid: cluster.pids_of(title) not in ([], [pid]),
                READY_WITHIN_S,
                f"another {title}",
            )
            cluster.wait_until_ready()
            assert generate(cluster, 0) == new_answers[0]
