"""Heads that draft for a model divided among ranks: the drafts of one process, and no other token."""

from __future__ import annotations

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
    draft = EagleDrafter.draft

    def recorded(self: EagleDrafter, plan: StepPlan, result: StepResult) -> StepResult:
        drafted = draft(self, plan, result)
        made.extend(tuple(tokens) for tokens in drafted.drafts.values())
        return drafted

    monkeypatch.setattr(EagleDrafter, "draft", recorded)
    return made


@pytest.mark.parametrize(
    ("form", "family", "tensor", "stages", "is_invariant"),
    [
        ("eagle", "gemma3", 2, 1, False),
        ("eagle3", "llama", 2, 1, False),
        ("eagle", "llama", 1, 2, False),
        ("eagle3", "llama", 1, 2, False),
        ("eagle3", "gemma3", 2, 2, True),
        exhaustive("eagle", "llama", 2, 1, False),
        exhaustive("eagle3", "gemma3", 2, 1, False),
        exhaustive("eagle", "gemma3", 1, 2, True),
        exhaustive("eagle3", "gemma3", 1, 2, True),
        exhaustive("eagle", "llama", 2, 2, True),
        exhaustive("eagle", "gemma3", 2, 2, False),
        exhaustive("eagle3", "llama", 1, 3, False),
    ],
)
def test_a_head_of_ranks_drafts_as_for_one_process(
    form: str, family: str, tensor: int, stages: int, drafts: Drafts, tmp_path: Path, *, is_invariant: bool
) -> None:
    """EAGLE shares the output head, which ranks divide; both share the embeddings, which the first stage has.

    Decode steps are recorded, but for batch-invariant ones, whose log-probabilities are equal bit by bit.
    """
    target = make_model(tmp_path / "target", family, num_layers=3)
    head = Head(tmp_path / "head", target, form=form, options={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    config = {"method": form, "model": str(head.folder), "num_speculative_tokens": 3}
    invariant = {"batch_invariant": is_invariant, "parallel_invariant": is_invariant and tensor > 1}
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    params = greedy(16, logprobs=0 if is_invariant else None)

    def answers(**settings: Any) -> list[Any]:
        """Answer the prompts one by one, with all drafts kept, and then together."""
        with LLM.from_engine_args(tiny_args(target, **invariant, **settings)) as llm:
            drafts.clear()
            outputs = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in PROMPTS]
            made = drafts.copy()
            llm.reset_prefix_cache()
            outputs += llm.generate(PROMPTS, params, use_tqdm=False)
        assert (len(drafts) > len(made) > 20) is ("speculative_config" in settings)
        return [made, *((one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs)]

    none, *expected = answers()
    assert not none
    alone = answers(speculative_config=config)
    assert alone[1:] == expected
    assert answers(speculative_config=config, **sizes) == alone
