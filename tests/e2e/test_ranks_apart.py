"""Workers whose ranks have KV pools of their own: blocks go from the ranks of one to those of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import LLM
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import FLOAT32, NO_GRAMMARS, SMALL, children_of, serving

PROMPTS = [draw_prompt(90 + 40 * number, seed=number) for number in range(3)]


@pytest.mark.exhaustive
def test_two_ranks_hand_prompts_over_to_four(tmp_path: Path, llm: LLM) -> None:
    sizes = ("--prefill-tensor-parallel-size", "2", "--decode-tensor-parallel-size", "4")
    flags = ("--rank-pools", "apart", "--kv-transport", "tcp", *sizes)
    expected = llm.generate(PROMPTS, greedy(20), use_tqdm=False)
    with serving(tmp_path, *SMALL, *FLOAT32, *NO_GRAMMARS, *flags) as cluster:
        workers = [*cluster.pids_of("baton prefill-worker"), *cluster.pids_of("baton decode-worker")]
        titles = [title for pid in workers for title in children_of(pid).values()]
        assert sorted(title for title in titles if title.startswith("baton rank")) == [
            "baton rank 1",
            "baton rank 1",
            "baton rank 2",
            "baton rank 3",
        ]
        for prompt, other in zip(PROMPTS, expected, strict=True):
            (output,), _ = answer(cluster.stub.Generate(ask(prompt, greedy(20)), timeout=60.0))
            assert output.token_ids == other.outputs[0].token_ids
        cluster.wait_until_idle()
        log = cluster.log.read_text(encoding="utf-8")
    assert "came over tcp" in log
    assert "did not arrive" not in log
