"""A model that drafts: its drafts are what it would generate, and its blocks are never shared or lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_core.errors import InvalidConfigError
from baton_core.worker.speculative_config import read_speculative_config
from baton_core.worker.step_plan import DraftOrder, SeqId, SequenceSlice, StepPlan, StepResult
from baton_engine.drafting import draft_model as module
from baton_engine.drafting.draft_loading import plan_drafts
from baton_engine.drafting.draft_model import DraftModel
from baton_engine.engine_settings import EngineSettings
from baton_engine.models.registry import read_model_config
from baton_engine.steps.runner import ModelRunner
from tests.models import make_model
from tests.unit.engine.steps import BLOCK_SIZE, generate, make_runner, make_spec

PROMPT = (9, 40, 3, 77, 21, 5)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("draft") / "model", request.param)


def make_drafts(folder: Path, num_blocks: int = 12, max_model_len: int = 64) -> tuple[DraftModel, int]:
    runner = make_runner(folder, num_blocks)
    num_blocks *= len(runner.spec.groups)
    return DraftModel(runner, num_blocks, max_model_len), num_blocks


def ordered(
    text: tuple[int, ...], sampled: tuple[int, ...], num_tokens: int, *, start: int = 0, name: str = "a"
) -> tuple[SequenceSlice, tuple[int, ...]]:
    """A slice that computes the last token of a text, and what the step samples behind it."""
    order = DraftOrder(num_tokens=num_tokens, start=start, token_ids=text[start:])
    piece = SequenceSlice(
        seq_id=SeqId(name, 0),
        token_ids=text[-1:],
        start=len(text) - 1,
        block_tables=(),
        samples=(make_spec(len(text)),),
        order=order,
    )
    return piece, sampled


def draft(model: DraftModel, *pieces: tuple[SequenceSlice, tuple[int, ...]], ended: str = "") -> StepResult:
    over = tuple(SeqId(name, 0) for name in ended)
    plan = StepPlan(step_id=1, slices=tuple(piece for piece, _ in pieces), ended=over)
    return model.draft(plan, StepResult(step_id=1, sampled=tuple(sampled for _, sampled in pieces)))


@pytest.mark.parametrize("is_captured", [False, True])
def test_drafts_are_what_the_model_generates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_captured: bool
) -> None:
    monkeypatch.setattr(module, "MAX_CHUNK", 4)
    expected = tuple(generate(make_runner(folder), PROMPT, 12))
    model, num_blocks = make_drafts(folder)
    if is_captured:
        model._runner.capture_decodes(8, 64)
    text, known = PROMPT, 0
    for sampled in (expected[:1], expected[1:4], expected[4:5]):
        result = draft(model, ordered(text, sampled, 4, start=known))
        text += sampled
        known = len(text)
        begun = len(text) - len(PROMPT)
        assert result.drafts == {0: expected[begun : begun + 4]}
        assert result.drafting_s > 0
        model.check_invariants(num_blocks)


def test_a_rejected_draft_leaves_nothing_behind(folder: Path) -> None:
    model, _ = make_drafts(folder)
    draft(model, ordered(PROMPT, (8,), 3))
    text = (*PROMPT, 8, 60)  # what was sampled is not what was drafted
    again = draft(model, ordered(text[:-1], (60,), 3, start=len(PROMPT) + 1))
    assert again.drafts == {0: tuple(generate(make_runner(folder), text, 3))}


def test_sequences_that_are_over_and_those_that_wait_longest_give_their_blocks(folder: Path) -> None:
    model, num_blocks = make_drafts(folder, num_blocks=3)
    for name in "abc":
        assert 0 in draft(model, ordered(PROMPT, (8,), 2, name=name)).drafts
        model.check_invariants(num_blocks)
    assert 0 in draft(model, ordered(PROMPT, (8,), 2, name="d"), ended="b").drafts
    assert 0 in draft(model, ordered((*PROMPT, 8), (9,), 2, start=len(PROMPT) + 1, name="c")).drafts
    assert 0 in draft(model, ordered(PROMPT, (8,), 2, name="e")).drafts, "a has waited longest"
    model.check_invariants(num_blocks)
    lost = draft(model, ordered((*PROMPT, 8), (9,), 2, start=len(PROMPT) + 1, name="a"))
    assert lost.drafts == {}
    model.check_invariants(num_blocks)


def test_in_one_step_no_sequence_takes_the_blocks_of_another(folder: Path) -> None:
    model, num_blocks = make_drafts(folder, num_blocks=2)
    result = draft(model, *(ordered(PROMPT, (8,), 2, name=name) for name in "abc"))
    assert sorted(result.drafts) == [0, 1]
    model.check_invariants(num_blocks)


def test_few_tokens_are_computed_as_if_decoded_where_their_step_is_replayed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[list[int]] = []

    def run(self: ModelRunner, plan: StepPlan) -> StepResult:
        lengths.append([piece.num_scheduled_tokens for piece in plan.slices])
        return execute(self, plan)

    execute = ModelRunner.execute
    monkeypatch.setattr(ModelRunner, "execute", run)
    model, _ = make_drafts(folder)
    drafts = [draft(model, ordered(PROMPT[:2], (8,), 1))]
    model._runner.capture_decodes(8, 64)
    short, long = [[ordered(PROMPT[:size], (8,), 1, name=name) for name in "bcd"] for size in (1, 2)]
    drafts += [draft(model, *pieces) for pieces in (short, long, [short[0], ordered(PROMPT * 2, (8,), 1)])]
    assert lengths == [[3], [1] * 6, [3] * 3, [2, 13]]
    assert drafts[0].drafts[0] == drafts[2].drafts[0]


def test_nothing_is_drafted_past_the_longest_sequence(folder: Path) -> None:
    model, num_blocks = make_drafts(folder, max_model_len=len(PROMPT) + 3)
    assert len(draft(model, ordered(PROMPT, (8,), 4)).drafts[0]) == 2
    text = (*PROMPT, 8, 9, 10)
    assert draft(model, ordered(text, (11,), 4, start=len(PROMPT) + 1)).drafts == {}
    model.check_invariants(num_blocks)
    assert num_blocks * BLOCK_SIZE >= len(text)


def test_another_vocabulary_is_refused_before_anything_is_loaded(folder: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", "llama", vocab_size=640)
    config = read_speculative_config({"model": str(other), "num_speculative_tokens": 2})
    with pytest.raises(InvalidConfigError, match="it has 640"):
        plan_drafts(EngineSettings(model=str(folder), speculative=config))
    same = read_speculative_config({"model": str(folder), "num_speculative_tokens": 2})
    plan = plan_drafts(EngineSettings(model=str(folder), speculative=same, int4_w4a8=True))
    assert plan is not None
    assert plan.head is None
    assert (plan.settings.model, plan.settings.speculative) == (str(folder), None)
    assert not plan.settings.int4_w4a8
    memory, model = plan.memory(), read_model_config(folder).kv_spec(32, "float32")
    assert memory.block_bytes == len(model.groups) * model.block_bytes
    assert memory.weight_bytes == pytest.approx((folder / "model.safetensors").stat().st_size, rel=0.05)
