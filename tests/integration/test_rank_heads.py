"""Heads that draft for a model divided among ranks: the drafts of one process, and no other token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton import LLM
from baton_core.worker.step_plan import StepPlan, StepResult
from baton_engine.drafting.eagle_drafter import EagleDrafter
from baton_worker.core.speculation.model_drafts import DraftCosts
from baton_worker.core.speculation.step_times import StepTimes
from tests.eagle_heads import Head
from tests.integration.tiny_llm import greedy, tiny_args
from tests.models import make_model, make_prompt
from tests.tiers import exhaustive

PROMPTS = [make_prompt(length, seed=length) for length in (30, 3, 70)]
Drafts = list[tuple[int, ...]]


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Drafts:
    """All drafts from now on, of steps that are drafted behind whatever that costs."""
    monkeypatch.setattr(StepTimes, "relative", lambda _, base, most: [1.0] * (most - base + 1))
    monkeypatch.setattr(DraftCosts, "relative", 0.0)
    made: Drafts = []
    begin = EagleDrafter.begin

    def recorded(self: EagleDrafter, plan: StepPlan) -> Callable[[StepResult], StepResult]:
        draft = begin(self, plan)

        def record(result: StepResult) -> StepResult:
            drafted = draft(result)
            made.extend(tuple(tokens) for tokens in drafted.drafts.values())
            return drafted

        return record

    monkeypatch.setattr(EagleDrafter, "begin", recorded)
    return made


@pytest.mark.parametrize(
    ("form", "family"),
    [("eagle", "gemma3"), ("eagle3", "llama"), exhaustive("eagle", "llama"), exhaustive("eagle3", "gemma3")],
)
def test_a_head_of_tensor_ranks_drafts_as_for_one_process(
    form: str, family: str, drafts: Drafts, tmp_path: Path
) -> None:
    """EAGLE shares the output head, which ranks divide; both share the embeddings."""
    target = make_model(tmp_path / "target", family, num_layers=3)
    head = Head(tmp_path / "head", target, form=form, options={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    config = {"method": form, "model": str(head.folder), "num_speculative_tokens": 3}

    def tokens(**settings: Any) -> list[list[int]]:
        drafts.clear()
        with LLM.from_engine_args(tiny_args(target, **settings)) as llm:
            outputs = llm.generate(PROMPTS, greedy(16), use_tqdm=False)
        return [list(request.outputs[0].token_ids) for request in outputs]

    expected = tokens()
    assert not drafts
    assert tokens(speculative_config=config) == expected
    alone = drafts.copy()
    assert len(alone) > 20
    assert tokens(speculative_config=config, tensor_parallel_size=2) == expected
    assert drafts == alone
