"""`LLM` that plans steps ahead: the tokens are those of one that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baton import LLM, CompletionOutput, LLMEngine, RequestOutput, SamplingParams
from baton_core.worker.step_plan import StepPlan
from baton_worker.core.scheduler import Scheduler
from tests.integration.tiny_llm import greedy, tiny_args
from tests.models import make_prompt

ASKED = [
    (make_prompt(30, seed=1), greedy(24)),
    (make_prompt(3, seed=2), SamplingParams(temperature=0.9, seed=3, max_tokens=40, ignore_eos=True)),
    (make_prompt(70, seed=3), SamplingParams(temperature=1.0, seed=5, max_tokens=17, n=2, ignore_eos=True)),
    (make_prompt(9, seed=4), greedy(20, logprobs=2)),
    (make_prompt(12, seed=5), greedy(1)),
    (make_prompt(40, seed=6), greedy(5, presence_penalty=1.0)),
]
"""One draws by rules: while it runs, nothing is planned ahead."""


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """The steps that are planned ahead from now on."""
    plans: list[StepPlan] = []
    original = Scheduler.schedule_ahead

    def schedule_ahead(self: Scheduler, *args: object) -> StepPlan | None:
        plan = original(self, *args)  # type: ignore[arg-type]
        plans.extend([plan] if plan is not None else [])
        return plan

    monkeypatch.setattr(Scheduler, "schedule_ahead", schedule_ahead)
    return plans


def outputs_of(requests: list[RequestOutput], num_ranks: int) -> list[list[CompletionOutput]]:
    """Return the answers, without log-probabilities where sums over ranks may differ in their last bits."""
    outputs = [request.outputs for request in requests]
    if num_ranks == 1:
        return outputs
    return [[replace(one, logprobs=None, cumulative_logprob=None) for one in answers] for answers in outputs]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_tokens_are_those_of_an_engine_that_plans_step_by_step(
    num_ranks: int, folder: Path, ahead: list[StepPlan]
) -> None:
    prompts, params = [{"prompt_token_ids": prompt} for prompt, _ in ASKED], [params for _, params in ASKED]
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        expected = outputs_of(llm.generate(prompts, params, use_tqdm=False), num_ranks)
    assert not ahead, "on a CPU only who asks for it plans ahead"
    args = tiny_args(folder, async_scheduling=True, tensor_parallel_size=num_ranks)
    with LLM.from_engine_args(args) as llm:
        told = outputs_of(llm.generate(prompts, params, use_tqdm=False), num_ranks)
        assert told == expected
        assert max(len(plan.slices) for plan in ahead) > 1
        ahead.clear()
        (stop,) = expected[0][0].token_ids[10:11]
        first = expected[0][0].token_ids.index(stop)
        stopped = llm.generate(prompts[0], greedy(24, stop_token_ids=[stop]), use_tqdm=False)
        assert list(stopped[0].outputs[0].token_ids) == list(expected[0][0].token_ids[: first + 1])
        assert len(ahead) == first + 1, "one step too many, and no more"


def test_after_the_last_request_is_aborted_nothing_is_in_use(folder: Path) -> None:
    engine = LLMEngine.from_engine_args(tiny_args(folder, async_scheduling=True))
    engine.add_request("left", ASKED[0][0], greedy(40))
    for _ in range(4):
        engine.step()
    engine.abort_request("left")
    running, waiting, usage = engine.get_metrics()[:3]
    assert (running.value, waiting.value, usage.value) == (0, 0, 0)  # type: ignore[union-attr]
    engine.close()
