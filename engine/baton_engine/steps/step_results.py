"""From the sampler's output of a step to the results of its slices."""

from __future__ import annotations

from collections.abc import Sequence

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError, reason_of
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import SampleSpec, StepPlan, StepResult
from baton_engine.sampling.sampler import SamplerOutput
from baton_engine.steps.prompt_logprobs import PromptLogprobs
from baton_kernels.interface.sampling import Refusal


def step_result(
    plan: StepPlan, output: SamplerOutput, token_ids: Sequence[int], prompts: PromptLogprobs
) -> StepResult:
    """Give each slice its rows of `output`, one for each of its samples, and what was found of its prompt.

    `token_ids` are those of `output`, on the host. A slice that failed gets the reason alone; one counts as
    broken whose logits are not finite as the model computed them.
    """
    sampled: list[tuple[int, ...]] = []
    logprobs: dict[int, tuple[PositionLogprobs, ...]] = {}
    failures: dict[int, str] = {}
    refused: set[int] = set()
    broken: set[int] = set()
    num_rows = 0
    for number, piece in enumerate(plan.slices):
        rows = range(num_rows, num_rows + len(piece.samples))
        num_rows = rows.stop
        tokens = tuple(token_ids[rows.start : rows.stop])
        if piece.num_drafts:
            failed = {row - rows.start for row in rows if row in output.failures}
            rows = rows[: piece.num_verified(tokens, failed)]
            tokens = tokens[: len(rows)]
        errors = [output.failures[row] for row in rows if row in output.failures] if output.failures else []
        if not errors and tokens and min(tokens) < 0:
            refusal = Refusal(min(tokens))
            errors = [_error_of(refusal, piece.samples)]
            if _is_of_model(refusal, piece.samples):
                broken.add(number)
        if errors:
            failures[number] = reason_of(errors[0])
            refused |= {number} if isinstance(errors[0], InvalidRequestError) else set()
            sampled.append(())
            continue
        sampled.append(tokens)
        if output.logprobs and (told := [row for row in rows if row in output.logprobs]):
            logprobs[number] = tuple(output.logprobs[row] for row in told)
    return StepResult(
        step_id=plan.step_id,
        sampled=tuple(sampled),
        logprobs=logprobs,
        prompt_logprobs={number: told for number, told in prompts.items() if number not in failures},
        failures=failures,
        refused=frozenset(refused),
        broken=frozenset(broken),
    )


def _is_of_model(refusal: Refusal, samples: Sequence[SampleSpec]) -> bool:
    """Say whether logits that give no token are the model's own: no rule but a user's function makes NaN."""
    rules = [sample.history.rules.params for sample in samples if sample.history is not None]
    if refusal is Refusal.NOTHING_LEFT:
        return not rules
    return not any(params.logits_processors for params in rules)


def _error_of(refusal: Refusal, samples: Sequence[SampleSpec]) -> BatonError:
    """Return the error of a row without a token; what a user's function excludes is the request's fault."""
    for sample in samples if refusal is Refusal.NOTHING_LEFT else ():
        if sample.history is not None and (names := sample.history.rules.params.logits_processors):
            allowed = "those that leave a token: here all logits are minus infinity or NaN"
            return InvalidRequestError("logits_processors", names, allowed)
    return RequestError(ErrorCode.INTERNAL, refusal.reason)
