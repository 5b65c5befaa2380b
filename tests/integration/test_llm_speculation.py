"""`LLM` with prompt lookup: answers are those without it, to the last bit where steps are batch-invariant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton import LLM, CompletionOutput, SamplingParams
from baton.config.engine_args import BUNDLED_MODEL
from baton.sampling_params import StructuredOutputsParams
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_engine.drafting.draft_model import DraftModel
from baton_kernels.cpu.selection import load_build
from baton_worker.core.speculation.draft_counts import DraftCounts
from baton_worker.core.speculation.speculation import Speculation
from baton_worker.core.speculation.step_times import StepTimes

FUNCTION = "def area(width, height):\n    return width * height\n\n"
PROMPTS = ["A list is a list is a list is a", 3 * FUNCTION, "os.path.join(a, b), os.path.join(a,"]
LOOKUP = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
DRAFT_MODEL = {"model": BUNDLED_MODEL, "num_speculative_tokens": 4}
"""The model drafts for itself: a draft differs where rules change its logits, or a draw its history."""
HEAD = {"model": str(Path(__file__).parents[2] / "bench" / "bundled_eagle3"), "num_speculative_tokens": 4}
"""A folder that says itself that it is an EAGLE-3 head."""
SCHEMA = {"type": "array", "items": {"enum": ["width", "height"]}, "minItems": 6, "maxItems": 9}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "max_tokens": 48},
    "sampled": {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "seed": 3},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.02, "presence_penalty": 0.1},
    "several": {"n": 3, "temperature": 0.5, "seed": 4},
    "log-probabilities": {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 1},
    "a stop string": {"temperature": 0.0, "stop": ["list", "height"], "include_stop_str_in_output": True},
    "least tokens": {
        "temperature": 0.3,
        "seed": 1,
        "min_tokens": 24,
        "stop_token_ids": list(range(0, 4000, 9)),
    },
    "a stop token": {"temperature": 0.0, "stop_token_ids": list(range(0, 4000, 23))},
    "bad words": {"temperature": 0.0, "bad_words": ["return"], "logit_bias": {50: 0.5}},
    "repetition": {
        "temperature": 0.0,
        "max_tokens": 60,
        "repetition_detection": RepetitionDetectionParams(max_pattern_size=30, min_count=2),
    },
    "a schema": {"temperature": 0.0, "structured_outputs": StructuredOutputsParams(json=SCHEMA)},
    "an expression": {
        "temperature": 0.8,
        "seed": 6,
        "structured_outputs": StructuredOutputsParams(regex=r"(list|a list is ){4,8}"),
    },
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[DraftCounts]:
    """The counts of each worker that is made from now on, to which drafted rows seem to cost nothing."""
    made: list[DraftCounts] = []
    original = Speculation.__init__

    def init(self: Speculation, *args: Any) -> None:
        original(self, *args)
        made.append(self.counts)

    def relative(_: StepTimes, base: int, most: int) -> list[float]:
        return [1.0] * (most - base + 1)

    monkeypatch.setattr(Speculation, "__init__", init)
    monkeypatch.setattr(StepTimes, "relative", relative)
    return made


def answers(**settings: Any) -> list[list[CompletionOutput]]:
    params = [SamplingParams(**{"max_tokens": 32, **fields}) for fields in KINDS.values()]
    with LLM(dtype="float32", kv_cache_memory_bytes=16 << 20, **settings) as llm:
        asked = [(prompt, one) for one in params for prompt in PROMPTS]
        outputs = llm.generate([prompt for prompt, _ in asked], [one for _, one in asked], use_tqdm=False)
    return [request.outputs for request in outputs]


def without_values(outputs: list[list[CompletionOutput]]) -> list[list[tuple[object, ...]]]:
    """Leave out the numbers, which differ in their last bits where other rows share a step."""
    return [
        [(one.token_ids, one.text, one.finish_reason, one.stop_reason) for one in several]
        for several in outputs
    ]


@pytest.fixture(scope="module")
def expected() -> list[list[CompletionOutput]]:
    return answers()


@pytest.mark.parametrize(
    "config",
    [LOOKUP, {"method": "suffix"}, DRAFT_MODEL, HEAD],
    ids=["ngram", "suffix", "draft model", "eagle3"],
)
def test_answers_are_those_without_speculation(
    config: dict[str, Any], expected: list[list[CompletionOutput]], counts: list[DraftCounts]
) -> None:
    told = answers(speculative_config=config)
    assert without_values(told) == without_values(expected)
    for several, others in zip(told, expected, strict=True):
        for one, other in zip(several, others, strict=True):
            assert values_of(one) == pytest.approx(values_of(other), abs=1e-4)
    assert counts[-1].num_accepted_tokens > 100
    assert counts[-1].num_draft_tokens > counts[-1].num_accepted_tokens, "some drafts are wrong"


def values_of(output: CompletionOutput) -> list[float]:
    """Return the log-probabilities of an answer's tokens and of the likeliest ones, in order."""
    return [one.logprob for position in output.logprobs or () for one in position.values()]


@pytest.mark.skipif(load_build() is None, reason="it needs the C++ kernels, which this process has not")
def test_batch_invariant_answers_are_the_same_to_the_last_bit(counts: list[DraftCounts]) -> None:
    params = SamplingParams(temperature=0.4, seed=5, max_tokens=40, logprobs=2)
    told = []
    for config in (None, LOOKUP, HEAD):
        fields = {"dtype": "bfloat16", "batch_invariant": True, "kv_cache_memory_bytes": 16 << 20}
        with LLM(speculative_config=config, **fields) as llm:
            told.append([one.outputs for one in llm.generate(PROMPTS, params, use_tqdm=False)])
    assert told[0] == told[1] == told[2]
    assert [one.num_accepted_tokens > 4 for one in counts] == [False, True, True]


def test_a_draft_model_that_fails_ends_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(DraftModel, "draft", fail)
    params, told = SamplingParams(temperature=0.0, max_tokens=24), []
    for config in (None, DRAFT_MODEL):
        with LLM(dtype="float32", kv_cache_memory_bytes=16 << 20, speculative_config=config) as llm:
            told.append(llm.generate(PROMPTS, params, use_tqdm=False))
    assert without_values([one.outputs for one in told[1]]) == without_values(
        [one.outputs for one in told[0]]
    )
    assert [line.message for line in caplog.records if "drafting" in line.message] == [
        "drafting has failed; nothing is drafted any more"
    ]
