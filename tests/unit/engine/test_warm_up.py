"""The warm-up runs every kind of step before the first request, within the limits, without a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.worker.step_plan import SampleSpec, StepPlan, StepResult
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.sizing import KVCacheSettings
from baton_engine.steps.decode_replay import MAX_GRAPH_SEQS, DecodeReplay
from baton_engine.steps.runner import ModelRunner
from baton_engine.structured.compiler import GrammarCompiler
from baton_engine.structured.interface import Grammar
from baton_engine.warm_up import GRAMMAR, LARGE_BATCH, PROMPTS_WITHIN_S, SLOW_STEP_S, WarmUp, WarmUpLimits
from tests.models import make_prompt, make_tokenizer
from tests.unit.engine.steps import BLOCK_SIZE, generate, make_runner

LIMITS: dict[str, Any] = {"max_model_len": 200, "max_num_batched_tokens": 64, "max_decode_rows": 32}


class TimedRunner:
    """Computes nothing: a step takes so long for each token, and so much more the first time of its size."""

    def __init__(self, token_s: float = 0.0, compile_s: float = 0.0) -> None:
        self.spec = SimpleNamespace(block_size=BLOCK_SIZE, groups=(None, None))
        self.kv_pool = {0: None}
        self.now = 0.0
        self.plans: list[StepPlan] = []
        self._token_s, self._compile_s = token_s, compile_s
        self._sizes: set[int] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        size = num_tokens(plan)
        self.now += self._token_s * size + (0.0 if size in self._sizes else self._compile_s)
        self._sizes.add(size)
        return StepResult(step_id=plan.step_id, sampled=())


def plans_of(token_s: float = 0.0, compile_s: float = 0.0, **limits: Any) -> list[StepPlan]:
    runner: Any = TimedRunner(token_s, compile_s)
    warm_up = WarmUp(
        runner=runner, limits=WarmUpLimits(**{**LIMITS, **limits}), clock=lambda: float(runner.now)
    )
    warm_up.run_prompts()
    warm_up.run_decodes()
    return list(runner.plans)


def num_tokens(plan: StepPlan) -> int:
    return sum(piece.num_scheduled_tokens for piece in plan.slices)


# --- which steps ---


def test_prompts_grow_from_a_short_one_to_a_whole_step() -> None:
    assert prompts_of(plans_of()) == [2, 2, 8, 32, LIMITS["max_num_batched_tokens"]]


def test_a_size_that_has_to_be_compiled_first_is_run_again_and_ends_nothing() -> None:
    plans = plans_of(0.001, compile_s=2 * PROMPTS_WITHIN_S)
    assert prompts_of(plans) == [2, 2, 8, 8, 32, 32, 64, 64]


def prompts_of(plans: Sequence[StepPlan]) -> list[int]:
    """Return the numbers of tokens of the steps that are prompts."""
    return [num_tokens(plan) for plan in plans if num_tokens(plan) > len(plan.slices)]


def test_decode_steps_have_each_number_of_sequences_that_is_recorded_and_a_larger_one() -> None:
    decodes = [len(plan.slices) for plan in plans_of() if num_tokens(plan) == len(plan.slices)]
    recorded = [size for size in range(1, MAX_GRAPH_SEQS + 1) for _ in ("with sampling", "without")]
    assert decodes == [1, 1, *recorded, LARGE_BATCH]


def test_of_a_large_model_the_smallest_and_the_largest_recorded_step_run_and_sample_in_every_way() -> None:
    slow, fast = (plans_of(token_s, has_grammars=True) for token_s in (2 * SLOW_STEP_S, SLOW_STEP_S / 2))
    sizes = [len(plan.slices) for plan in slow if num_tokens(plan) == len(plan.slices)]
    assert sizes == [1, 1, MAX_GRAPH_SEQS]
    assert ways_missing(slow) == ways_missing(fast) == []


def test_every_way_to_draw_a_token_comes_up() -> None:
    plans = plans_of(has_grammars=True)
    assert ways_missing(plans) == []
    assert any(piece.prompt_logprobs and piece.prompt_targets for plan in plans for piece in plan.slices)
    assert any(plan.block_copies for plan in plans)


def ways_missing(plans: Sequence[StepPlan]) -> list[int]:
    """Return the ways to draw a token that no step has, by their numbers."""
    specs = [spec for plan in plans for piece in plan.slices for spec in piece.samples]
    ways: list[Callable[[SampleSpec], object]] = [
        lambda spec: spec.temperature == 0.0,
        lambda spec: spec.temperature > 0.0 and not spec.top_k and spec.top_p == 1.0,
        lambda spec: spec.top_k,
        lambda spec: spec.top_p < 1.0 and spec.min_p,
        lambda spec: spec.logprobs,
        lambda spec: spec.history and spec.history.rules.params.has_penalties,
        lambda spec: spec.history and spec.history.rules.params.structured_outputs == GRAMMAR,
    ]
    return [number for number, way in enumerate(ways) if not any(map(way, specs))]


@pytest.mark.parametrize("max_model_len", [1, 2, BLOCK_SIZE, 3 * BLOCK_SIZE])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 9])
@pytest.mark.parametrize("max_num_batched_tokens", [1, 5, 64])
def test_every_step_keeps_to_the_limits_and_to_block_0(
    max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int
) -> None:
    plans = plans_of(
        max_model_len=max_model_len,
        max_decode_rows=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        has_grammars=True,
    )
    for plan in plans:
        assert len(plan.slices) <= max_num_seqs
        assert num_tokens(plan) <= max(max_num_batched_tokens, len(plan.slices))
        for piece in plan.slices:
            assert piece.start + piece.num_scheduled_tokens <= max_model_len
            assert {block for table in piece.block_tables for block in table} == {0}


def test_a_slow_model_computes_no_whole_step() -> None:
    for token_s in (0.001, 0.01, 0.1):
        plans = plans_of(token_s, max_model_len=100_000, max_num_batched_tokens=100_000, max_decode_rows=1)
        prompts = [num_tokens(plan) for plan in plans if num_tokens(plan) > 1]
        assert token_s * sum(prompts[1:]) <= max(PROMPTS_WITHIN_S, token_s * BLOCK_SIZE)
        assert token_s * 16 * sum(prompts[1:]) > PROMPTS_WITHIN_S


# --- with a model ---


def test_warm_up_leaves_no_block_changed_but_the_first_which_is_zero(
    model_folder: Callable[[str], Path],
) -> None:
    runner = make_runner(model_folder("qwen3"))
    warm_up = WarmUp(runner=runner, limits=WarmUpLimits(**LIMITS))
    for run in (warm_up.run_prompts, warm_up.run_decodes):
        runner.kv_pool[0] = 1.0
        run()
        assert not runner.kv_pool[0].any()
        assert runner.kv_pool[1:].isnan().all()


def load(folder: Path, **settings: Any) -> ModelRunner:
    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 20, max_num_batched_tokens=64)
    chosen = EngineSettings(model=str(folder), block_size=BLOCK_SIZE, kv_cache=cache, **settings)
    return load_model(chosen).start().runner


@pytest.mark.usefixtures("needs_build")
@pytest.mark.parametrize("max_num_seqs", [3, 16])
def test_a_loaded_runner_has_recorded_its_decode_steps(
    max_num_seqs: int, model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[Any] = []
    record = DecodeReplay._record

    def noting(self: DecodeReplay, kind: Any, compute: Any) -> Any:
        recorded.append(kind)
        return record(self, kind, compute)

    monkeypatch.setattr(DecodeReplay, "_record", noting)
    runner = load(model_folder("llama"), max_num_seqs=max_num_seqs)
    kinds = [(size, way) for size in range(1, min(max_num_seqs, MAX_GRAPH_SEQS) + 1) for way in (False, True)]
    assert [(kind.num_seqs, kind.is_sampled) for kind in recorded] == kinds
    assert not runner.kv_pool.any()
    generate(runner, make_prompt(9), 4)
    assert len(recorded) == len(kinds), "a first request recorded a step"


@pytest.mark.parametrize("variant", ["llama", "gemma3"])
@pytest.mark.slow
def test_a_warm_runner_generates_what_a_cold_one_does(
    variant: str, model_folder: Callable[[str], Path]
) -> None:
    folder, prompt = model_folder(variant), make_prompt(21)
    warm, cold = load(folder), make_runner(folder)
    for temperature in (0.0, 1.0):
        tokens = [generate(one, prompt, 12, temperature=temperature, seed=3) for one in (warm, cold)]
        assert tokens[0] == tokens[1]


def test_the_library_of_grammars_is_loaded_and_a_grammar_followed(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    followed: list[object] = []

    class Grammars(GrammarCompiler):
        def get(self, params: StructuredOutputsParams) -> Grammar:
            followed.append(params)
            return super().get(params)

    grammars = Grammars(tmp_path, 512, (1,))
    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 20)
    load_model(EngineSettings(model=str(model_folder("llama")), kv_cache=cache)).start(grammars=grammars)
    assert "xgrammar" in sys.modules
    assert followed
    assert set(followed) == {GRAMMAR}
    assert grammars.compile(GRAMMAR).exception(timeout=0.0) is None
