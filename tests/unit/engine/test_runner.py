"""Step plans on the runner, against Transformers and against themselves in other company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from baton_core.worker.step_plan import SAMPLED, Followed, LogprobsSpec, SequenceSlice, StepPlan, StepResult
from baton_engine.steps.runner import ModelRunner
from tests.models import greedy_reference, make_prompt
from tests.unit.engine.steps import (
    BLOCK_SIZE,
    generate,
    make_history,
    make_plan,
    make_rules,
    make_runner,
    make_slice,
    make_spec,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runner(model_folder: Callable[[str], Path]) -> ModelRunner:
    return make_runner(model_folder("llama"))


@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen2-moe"])
def test_greedy_tokens_equal_those_of_transformers(variant: str, model_folder: Callable[[str], Path]) -> None:
    folder, prompt = model_folder(variant), make_prompt(21, seed=3)
    expected, smallest_gap = greedy_reference(folder, prompt, 24)
    assert smallest_gap >= 1e-4
    assert generate(make_runner(folder), prompt, 24) == expected


@pytest.mark.parametrize("chunk_len", [1, 5, BLOCK_SIZE, 16])
def test_chunks_of_a_prompt_change_no_token(runner: ModelRunner, chunk_len: int) -> None:
    prompt = make_prompt(37)
    assert generate(runner, prompt, 8, chunk_len=chunk_len) == generate(runner, prompt, 8)


def test_sampled_tokens_repeat_under_other_blocks_and_chunks(runner: ModelRunner) -> None:
    prompt = make_prompt(19)
    alone = generate(runner, prompt, 12, temperature=1.0, seed=41)
    moved = generate(runner, prompt, 12, temperature=1.0, seed=41, block_ids=(20, 21, 25, 24), chunk_len=4)
    assert moved == alone
    assert generate(runner, prompt, 12, temperature=1.0, seed=42) != alone


def test_a_mixed_batch_gives_every_sequence_its_tokens_alone(runner: ModelRunner) -> None:
    prompts = {name: make_prompt(length, seed=length) for name, length in (("a", 5), ("b", 30), ("c", 17))}
    blocks = {"a": (0, 1, 2), "b": (3, 4, 5, 6, 7), "c": (8, 9, 10, 11)}
    expected = {name: generate(runner, prompt, 3) for name, prompt in prompts.items()}

    def piece(name: str, start: int, stop: int, *, is_sampled: bool = True):
        tokens = prompts[name] + expected[name]
        samples = (make_spec(stop),) if is_sampled else ()
        return make_slice(tokens[start:stop], blocks[name], start=start, samples=samples, name=name)

    def step(*slices) -> tuple[tuple[int, ...], ...]:
        return runner.execute(make_plan(*slices)).sampled

    a, b, c = expected["a"], expected["b"], expected["c"]
    assert step(piece("a", 0, 5), piece("b", 0, 11, is_sampled=False)) == ((a[0],), ())
    assert step(piece("b", 11, 30), piece("a", 5, 6), piece("c", 0, 17)) == ((b[0],), (a[1],), (c[0],))
    assert step(piece("c", 17, 18), piece("a", 6, 7), piece("b", 30, 31)) == ((c[1],), (a[2],), (b[1],))


def test_several_samples_of_one_slice_draw_from_the_same_logits(runner: ModelRunner) -> None:
    prompt = make_prompt(11)
    specs = [make_spec(11, seed=seed, temperature=1.0) for seed in (4, 5, 6, 4)] + [make_spec(11)]
    (together,) = runner.execute(make_plan(make_slice(prompt, (0, 1), samples=specs))).sampled
    alone = [
        runner.execute(make_plan(make_slice(prompt, (0, 1), samples=[spec]))).sampled[0][0] for spec in specs
    ]
    assert list(together) == alone
    assert together[0] == together[3]
    assert len(set(together)) > 2


def test_more_samples_than_are_copied_at_a_time_keep_their_rows(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third is refused, the others have log-probabilities or not."""
    prompt, rules = make_prompt(12), make_rules(allowed_token_ids=(7, 8), bad_words=((7,), (8,)))
    specs = [
        make_spec(
            12,
            seed=seed,
            temperature=1.0,
            logprobs=LogprobsSpec(num_top=1) if seed % 2 else None,
            history=make_history(prompt=prompt, rules=rules) if seed == refused else None,
        )
        for refused in (-1, 2)
        for seed in range(5)
    ]
    plan = make_plan(
        make_slice(prompt, (0, 1), samples=specs[:5]), make_slice(prompt, (2, 3), samples=specs[5:])
    )
    together = runner.execute(plan)
    monkeypatch.setattr("baton_engine.steps.runner.MAX_COPIED_ROWS", 3)
    in_parts = runner.execute(plan)
    assert in_parts == together
    assert len(together.sampled[0]) == 5
    assert list(together.failures) == [1]
    assert len(together.logprobs[0]) == 2


def test_a_step_without_samples_returns_no_tokens(runner: ModelRunner) -> None:
    plan = make_plan(make_slice([5, 6], (0,)), make_slice([7], (1,), name="b"))
    assert runner.execute(plan) == StepResult(step_id=7, sampled=((), ()))


def test_a_plan_of_copies_alone_copies(runner: ModelRunner) -> None:
    runner.kv_pool[0], runner.kv_pool[1] = 1.0, 2.0
    assert runner.execute(make_plan(block_copies=[(0, 1), (1, 0)])).sampled == ()
    assert (runner.kv_pool[0] == 2).all()
    assert (runner.kv_pool[1] == 1).all()


def test_copies_happen_before_the_slices_write(runner: ModelRunner) -> None:
    prompt = make_prompt(6)
    (first,) = generate(runner, prompt, 1, block_ids=(0,))
    expected = generate(runner, [*prompt, first], 1, block_ids=(1,))
    forked = make_slice([first], (2,), start=6, samples=(make_spec(7),))
    shared = runner.kv_pool[0].clone()
    assert runner.execute(make_plan(forked, block_copies=[(0, 2)])).sampled == (tuple(expected),)
    torch.testing.assert_close(runner.kv_pool[0], shared, atol=0, rtol=0, equal_nan=True)


def test_a_step_computes_the_tokens_of_the_one_before_it_without_knowing_them(runner: ModelRunner) -> None:
    prompts = {name: make_prompt(length, seed=length) for name, length in (("a", 5), ("b", 16), ("c", 23))}
    blocks = {"a": (0, 1, 2), "b": (3, 4, 5), "c": (8, 9, 10, 11)}
    expected = {name: generate(runner, prompt, 3, temperature=1.0) for name, prompt in prompts.items()}

    def piece(name: str, start: int, token_ids: list[int]) -> SequenceSlice:
        sample = make_spec(start + len(token_ids), temperature=1.0)
        return make_slice(token_ids, blocks[name], start=start, samples=(sample,), name=name)

    first = StepPlan(step_id=1, slices=tuple(piece(name, 0, prompts[name]) for name in "abc"))
    both = tuple(piece(name, len(prompts[name]), [SAMPLED]) for name in "ac")
    last = piece("c", len(prompts["c"]) + 1, [SAMPLED])
    plans = (
        first,
        StepPlan(step_id=2, slices=both, follows=Followed(step_id=1, rows=(0, 2))),
        StepPlan(step_id=3, slices=(last,), follows=Followed(step_id=2, rows=(1,))),
    )
    results = [launched().sampled for launched in [runner.launch(plan) for plan in plans]]
    a, b, c = expected.values()
    assert results == [((a[0],), (b[0],), (c[0],)), ((a[1],), (c[1],)), ((c[2],),)]
    with pytest.raises(RuntimeError, match="step 2 failed, and step 4 follows it"):
        runner.launch(StepPlan(step_id=4, slices=both, follows=Followed(step_id=2, rows=(0, 1))))
