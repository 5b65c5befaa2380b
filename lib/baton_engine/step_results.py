"""From what was drawn and told in a step to what each slice of its plan gets."""

from __future__ import annotations

from collections.abc import Sequence

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import SampleSpec, StepPlan, StepResult
from baton_engine.prompt_logprobs import PromptLogprobs
from baton_engine.sampler import Drawn
from baton_kernels.sampling import Refusal


def step_result(
    plan: StepPlan, drawn: Drawn, token_ids: Sequence[int], prompts: PromptLogprobs
) -> StepResult:
    """Give each slice its rows of `drawn`, one for each of its samples, and what was found of its prompt.

    `token_ids` are those of `drawn`, on the host. A slice that failed gets the reason alone; one counts as
    broken whose logits are not finite as the model computed them.
    """
    sampled: list[tuple[int, ...]] = []
    logprobs: dict[int, tuple[PositionLogprobs, ...]] = {}
    failures: dict[int, str] = {}
    broken: set[int] = set()
    num_rows = 0
    for number, piece in enumerate(plan.slices):
        rows = range(num_rows, num_rows + len(piece.samples))
        num_rows = rows.stop
        tokens = tuple(token_ids[rows.start : rows.stop])
        reasons = [drawn.failures[row] for row in rows if row in drawn.failures] if drawn.failures else []
        if not reasons and tokens and min(tokens) < 0:
            refusal = Refusal(min(tokens))
            reasons = [refusal.reason]
            if _is_of_model(refusal, piece.samples):
                broken.add(number)
        if reasons:
            failures[number] = reasons[0]
            sampled.append(())
            continue
        sampled.append(tokens)
        if drawn.logprobs and (told := [row for row in rows if row in drawn.logprobs]):
            logprobs[number] = tuple(drawn.logprobs[row] for row in told)
    return StepResult(
        step_id=plan.step_id,
        sampled=tuple(sampled),
        logprobs=logprobs,
        prompt_logprobs={number: told for number, told in prompts.items() if number not in failures},
        failures=failures,
        broken=frozenset(broken),
    )


def _is_of_model(refusal: Refusal, samples: Sequence[SampleSpec]) -> bool:
    """Say whether logits that give no token are the model's own: no rule but a user's function makes NaN."""
    rules = [sample.history.rules.params for sample in samples if sample.history is not None]
    if refusal is Refusal.NOTHING_LEFT:
        return not rules
    return not any(params.logits_processors for params in rules)
