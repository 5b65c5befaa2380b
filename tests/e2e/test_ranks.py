"""Workers of several ranks: one that loses a rank is started again, and its requests go on elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton import LLM, CompletionOutput
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import (
    BRISK,
    FLOAT32,
    NO_GRAMMARS,
    ONE_MIXED,
    SMALL,
    Cluster,
    children_of,
    serving,
    until,
)

RESTARTED_WITHIN_S = 80.0
PROMPTS = [draw_prompt(90 + 20 * number, seed=number) for number in range(6)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two mixed workers, each a pipeline of two stages."""
    roles = (*ONE_MIXED, "--mixed", "2", "--split", "never")
    flags = (*roles, "--pipeline-parallel-size", "2", "--move-timeout", "80")
    with serving(tmp_path_factory.mktemp("ranks"), *SMALL, *FLOAT32, *BRISK, *NO_GRAMMARS, *flags) as cluster:
        yield cluster


def ranks_of(cluster: Cluster) -> list[tuple[int, int]]:
    """Return each worker's process with that of its other rank."""
    return [
        (worker, pid)
        for worker in cluster.pids_of("baton mixed-worker")
        for pid, title in children_of(worker).items()
        if title.startswith("baton rank")
    ]


def stream(cluster: Cluster, prompt: list[int]) -> CompletionOutput:
    """Return the one answer to a prompt."""
    call = cluster.stub.Generate(ask(prompt, greedy(150)), timeout=RESTARTED_WITHIN_S)
    (output,), _ = answer(call)
    return output


@pytest.mark.exhaustive
def test_streams_go_on_with_the_same_tokens_when_a_rank_is_killed(cluster: Cluster, llm: LLM) -> None:
    until(lambda: len(cluster.info().workers) == 2, RESTARTED_WITHIN_S, "both workers")
    before = ranks_of(cluster)
    assert len(before) == 2
    expected = llm.generate(PROMPTS, greedy(150), use_tqdm=False)
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        calls = [threads.submit(stream, cluster, prompt) for prompt in PROMPTS]
        until(lambda: sum(one.num_running for one in cluster.info().workers) > 0, 30, "running requests")
        os.kill(before[0][1], signal.SIGKILL)
        outputs = [call.result() for call in calls]
    assert [one.token_ids for one in outputs] == [one.outputs[0].token_ids for one in expected]
    until(lambda: before[0][0] not in children_of(cluster.process.pid), 30, "the end of its worker")
    until(lambda: len(ranks_of(cluster)) == 2, RESTARTED_WITHIN_S, "another group")
    cluster.wait_until_idle()
    assert before[0] not in ranks_of(cluster)
    assert "rank 0 of the model's ranks is lost: its process was killed by signal 9" in Path(
        cluster.log
    ).read_text(encoding="utf-8")
