"""Heads that draft from hidden states: their drafts are those of a plain computation in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from safetensors.torch import save_file

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_core.worker.speculative_config import read_speculative_config
from baton_core.worker.step_plan import DraftOrder, SeqId, SequenceSlice, StepPlan, StepResult
from baton_engine.drafting import eagle_drafter as module
from baton_engine.drafting.draft_loading import plan_drafts
from baton_engine.drafting.eagle_drafter import EagleDrafter
from baton_engine.engine_settings import EngineSettings, KVCacheSettings
from baton_engine.loading import LoadedModel, load_model
from baton_engine.steps.decode_replay import MAX_GRAPH_SEQS
from baton_engine.steps.runner import ModelRunner
from tests.eagle_heads import Head
from tests.models import make_model
from tests.unit.engine.steps import make_spec

pytestmark = pytest.mark.slow

NUM_BLOCKS = 32
PROMPT = (9, 40, 3, 77, 21, 5, 60, 33, 12, 8)
FORMS: dict[str, dict[str, Any]] = {
    "eagle": {"form": "eagle"},
    "eagle in an object": {"form": "eagle-nested"},
    "eagle3": {"form": "eagle3"},
    "of fewer tokens": {"form": "eagle3", "draft_vocab_size": 100},
    "speculators": {
        "form": "speculators",
        "draft_vocab_size": 100,
        "options": {"norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [1, 3]},
    },
    "normed before": {"form": "eagle3", "options": {"norm_before_fc": True, "norm_output": True}},
    "normed apart": {"form": "speculators", "options": {"fc_norm": True}},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("target") / "model", "llama", num_layers=6)


class Rig:
    """A target and its head, step by step."""

    def __init__(self, target: Path, head: Path, method: str, **settings: Any) -> None:
        config = read_speculative_config({"method": method, "model": str(head), "num_speculative_tokens": 3})
        self.settings = EngineSettings(
            model=str(target),
            dtype="float32",
            block_size=8,
            kv_cache=KVCacheSettings(num_gpu_blocks_override=NUM_BLOCKS, max_num_batched_tokens=64),
            speculative=config,
            max_num_seqs=4,
            **settings,
        )
        plan = plan_drafts(self.settings)
        assert plan is not None
        self.model: LoadedModel = load_model(self.settings)
        plan.tap(self.model)
        self.runner: ModelRunner = self.model.start().runner
        drafter = plan.load(self.model)
        assert isinstance(drafter, EagleDrafter)
        self.drafter = drafter

    def step(self, *pieces: SequenceSlice, ended: str = "") -> StepResult:
        plan = StepPlan(step_id=1, slices=pieces, ended=tuple(SeqId(name, 0) for name in ended))
        return self.drafter.draft(plan, self.runner.execute(plan))


def piece(
    token_ids: tuple[int, ...],
    start: int,
    *,
    drafts: int = 0,
    order: int = 0,
    name: str = "a",
    is_last: bool = True,
) -> SequenceSlice:
    """A slice of a text, which samples behind its last token or behind each draft."""
    end = start + len(token_ids)
    first = 8 * "abc".index(name)
    return SequenceSlice(
        seq_id=SeqId(name, 0),
        token_ids=token_ids,
        start=start,
        block_tables=(tuple(range(first, first + -(-end // 8))),),
        samples=tuple(make_spec(end - drafts + place) for place in range(drafts + 1)) if is_last else (),
        num_drafts=drafts,
        order=DraftOrder(num_tokens=order, start=0) if order else None,
    )


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["captured", "eager"])
@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_those_of_float64(form: str, target: Path, tmp_path: Path, *, enforce_eager: bool) -> None:
    head = Head(tmp_path / "head", target, **FORMS[form])
    method = "eagle3" if head.is_third else "eagle"
    rig = Rig(target, head.folder, method, enforce_eager=enforce_eager)
    most = min(MAX_GRAPH_SEQS, rig.settings.max_decode_rows)
    assert rig.drafter._runner.max_captured_rows == (0 if enforce_eager else most)
    result = rig.step(piece(PROMPT, 0, order=3))
    text = PROMPT + result.sampled[0]
    assert result.drafts == {0: head.draft(text, 3)}
    assert result.drafting_s > 0

    given = (*text[-1:], 7, 11)  # one by one, and most drafts are wrong
    result = rig.step(piece(given, len(text) - 1, drafts=2, order=3))
    text += result.sampled[0]
    assert len(result.sampled[0]) < 3
    assert result.drafts == {0: head.draft(text, 3)}

    result = rig.step(piece(text[-1:], len(text) - 1))
    text += result.sampled[0]
    assert result.drafts == {}
    right = rig.step(piece(text[-1:], len(text) - 1)).sampled[0]
    after = (*text, *right)
    result = rig.step(piece(after[-1:], len(after) - 1, order=2))
    assert result.drafts == {0: head.draft(after + result.sampled[0], 2)}
    rig.drafter.check_invariants(NUM_BLOCKS + 1)


def test_prompts_in_chunks_long_contexts_and_right_drafts(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHUNK", 4)
    monkeypatch.setattr(module, "MAX_PENDING", 5)
    head = Head(tmp_path / "head", target)
    rig = Rig(target, head.folder, "eagle3")
    long = tuple(range(20, 43))
    rig.step(piece(long[:13], 0, is_last=False))
    result = rig.step(piece(long[13:], 13, order=2), piece(PROMPT, 0, name="b", order=3))
    text, other = long + result.sampled[0], PROMPT + result.sampled[1]
    assert result.drafts == {0: head.draft(text, 2), 1: head.draft(other, 3)}
    alone = Rig(target, head.folder, "eagle3")
    right: tuple[int, ...] = ()
    state = alone.step(piece(text, 0)).sampled[0]
    for _ in range(3):
        right += state
        state = alone.step(piece(right[-1:], len(text) + len(right) - 1)).sampled[0]
    given = (*text[-1:], *right[:2])
    result = rig.step(
        piece(given, len(text) - 1, drafts=2, order=3), piece(other[-1:], len(other) - 1, name="b")
    )
    assert result.sampled[0] == right
    assert result.drafts == {0: head.draft(text + right, 3)}


def test_a_sequence_that_begins_elsewhere_is_followed_from_there(target: Path, tmp_path: Path) -> None:
    head = Head(tmp_path / "head", target)
    rig = Rig(target, head.folder, "eagle3")
    rig.step(piece(PROMPT[:8], 0, is_last=False, name="b"))
    # The first block of another sequence is a prefix of this one.
    begun = piece(PROMPT[8:], 8, order=3)
    tables = ((8, *begun.block_tables[0][1:]),)
    result = rig.step(msgspec.structs.replace(begun, block_tables=tables))
    assert result.drafts == {0: head.draft(PROMPT + result.sampled[0], 3, start=8)}


def test_where_nothing_is_ordered_for_long_a_sequence_is_followed_from_the_latest_steps(
    target: Path, tmp_path: Path
) -> None:
    head = Head(tmp_path / "head", target)
    rig = Rig(target, head.folder, "eagle3")
    text = PROMPT + rig.step(piece(PROMPT, 0)).sampled[0]
    with patch.object(rig.drafter, "_run", wraps=rig.drafter._run) as run:
        for _ in range(module.MAX_UNFOLLOWED + 5):
            text += rig.step(piece(text[-1:], len(text) - 1)).sampled[0]
        other = PROMPT + rig.step(piece(PROMPT, 0, name="b"), piece(PROMPT, 0, name="c")).sampled[0]
        rig.step(piece((1,), len(PROMPT), name="c"))
        run.assert_not_called()
    start = len(text) - module.MAX_UNFOLLOWED
    pieces = piece(text[-1:], len(text) - 1, order=2), piece(other[-1:], len(other) - 1, name="b", order=2)
    result = rig.step(*pieces, ended="c")
    drafts = head.draft(text + result.sampled[0], 2, start=start)
    assert result.drafts == {0: drafts, 1: head.draft(other + result.sampled[1], 2, start=len(other) - 1)}
    assert rig.drafter._followed.keys() == {SeqId("a", 0), SeqId("b", 0)}


def test_sequences_of_steps_in_turn_are_followed_from_their_first_tokens(
    target: Path, tmp_path: Path
) -> None:
    """A pipeline has several steps in flight, each of other sequences."""
    head = Head(tmp_path / "head", target)
    rig = Rig(target, head.folder, "eagle3")
    text = PROMPT + rig.step(piece(PROMPT, 0)).sampled[0]
    other = PROMPT[::-1] + rig.step(piece(PROMPT[::-1], 0, name="b")).sampled[0]
    other += rig.step(piece(other[-1:], len(other) - 1, name="b")).sampled[0]
    rig.step(piece(text[-1:], len(text) - 1, order=2))
    result = rig.step(piece(other[-1:], len(other) - 1, name="b", order=2))
    assert result.drafts == {0: head.draft(other + result.sampled[0], 2)}


@pytest.mark.parametrize(("method", "num_places"), [("eagle", 1), ("eagle3", 3)])
def test_memory_of_the_states_that_a_head_reads_is_counted(
    method: str, num_places: int, target: Path, tmp_path: Path
) -> None:
    head = Head(tmp_path / "head", target, form=method)
    config = read_speculative_config(
        {"method": method, "model": str(head.folder), "num_speculative_tokens": 3}
    )

    def num_bytes(num_tokens: int) -> int:
        cache = KVCacheSettings(max_num_batched_tokens=num_tokens)
        plan = plan_drafts(
            EngineSettings(model=str(target), dtype="float32", kv_cache=cache, speculative=config)
        )
        assert plan is not None
        return plan.memory().weight_bytes

    assert num_bytes(5000) - num_bytes(4000) == 1000 * num_places * head.size * 4


def test_what_does_not_fit_is_refused_before_weights(target: Path, tmp_path: Path) -> None:
    def refused(head: Head, method: str = "eagle3", model: Path | None = None) -> str:
        config = read_speculative_config(
            {"method": method, "model": str(head.folder), "num_speculative_tokens": 3}
        )
        with pytest.raises((InvalidConfigError, InvalidModelError)) as error:
            plan_drafts(EngineSettings(model=str(model or target), speculative=config))
        return str(error.value)

    head = Head(tmp_path / "head", target)
    assert "allowed: those of a head for eagle" in refused(head, "eagle")
    other = make_model(tmp_path / "other", "llama", vocab_size=640, num_layers=6)
    assert "vocab_size is" in refused(head, model=other)
    wide = Head(tmp_path / "wide", target, options={"eagle_aux_hidden_state_layer_ids": [1, 5]})
    small = make_model(tmp_path / "small", "llama", num_layers=2)
    assert "eagle_aux_hidden_state_layer_ids" in refused(wide, model=small)
    deep = Head(tmp_path / "deep", target, options={"num_hidden_layers": 2})
    assert "num_hidden_layers is 2" in refused(deep)
    gpt2 = make_model(tmp_path / "gpt2", "gpt2")
    assert "ngram, suffix or draft_model" in refused(head, model=gpt2)


def test_a_folder_says_itself_that_it_is_a_head(target: Path, tmp_path: Path) -> None:
    for form, method in (("eagle-nested", "eagle"), ("eagle3", "eagle3"), ("speculators", "eagle3")):
        head = Head(tmp_path / form, target, form=form)
        config = read_speculative_config({"model": str(head.folder), "num_speculative_tokens": 3})
        plan = plan_drafts(EngineSettings(model=str(target), speculative=config))
        assert plan is not None
        assert plan.head is not None
        assert plan.head.method == method


def test_a_head_without_its_tensors_is_refused_by_name(target: Path, tmp_path: Path) -> None:
    head = Head(tmp_path / "head", target, draft_vocab_size=100)
    del head.tensors["midlayer.hidden_norm.weight"]
    head.tensors["d2t"] += 10_000
    save_file(head.tensors, head.folder / "model.safetensors")
    with pytest.raises(InvalidModelError, match=r"layers\.0\.hidden_norm\.weight is missing"):
        Rig(target, head.folder, "eagle3")
    head.tensors["midlayer.hidden_norm.weight"] = head.tensors["norm.weight"].clone()
    save_file(head.tensors, head.folder / "model.safetensors")
    with pytest.raises(InvalidModelError, match="d2t names tokens up to"):
        Rig(target, head.folder, "eagle3")


def test_blocks_that_are_lost_end_drafts_alone(target: Path, tmp_path: Path) -> None:
    head = Head(tmp_path / "head", target)
    rig = Rig(target, head.folder, "eagle3")
    rig.drafter._blocks._free = rig.drafter._blocks._free[:2]
    result = rig.step(piece(PROMPT, 0, order=2), piece(PROMPT, 0, name="b", order=2))
    assert sorted(result.drafts) == [0]
    again = rig.step(piece(PROMPT, 0, name="c", order=2), ended="a")
    assert sorted(again.drafts) == [0]
