"""Outputs mean what vLLM's mean: ends, half characters, log-probabilities under a grammar, float16."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton import LLM, CompletionOutput, RepetitionDetectionParams, SamplingParams, StructuredOutputsParams
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model, reference_logits

SECOND_END = 300
END_OF_TOKENIZER = "<|im_end|>"
CHOICES = ("left", "right", "up")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("models") / "llama")
    generation = json.loads((folder / "generation_config.json").read_text())
    own = json.loads((folder / "config.json").read_text())["eos_token_id"]
    ends = [*(own if isinstance(own, list) else [own]), SECOND_END]
    (folder / "generation_config.json").write_text(json.dumps({**generation, "eos_token_id": ends}))
    return folder


def writing(*token_ids: int) -> Callable[[list[int], Tensor], Tensor]:
    """A logits processor that lets the output be these tokens, the last of them for ever."""

    def write(output_token_ids: list[int], logits: Tensor) -> Tensor:
        only = torch.full_like(logits, -torch.inf)
        only[token_ids[min(len(output_token_ids), len(token_ids) - 1)]] = 0.0
        return only

    return write


def generate(llm: LLM, params: SamplingParams) -> CompletionOutput:
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    return output.outputs[0]


def token_ids_of(llm: LLM, text: str) -> list[int]:
    ids: list[int] = llm.get_tokenizer().encode(text, add_special_tokens=False)
    return ids


def test_the_reason_of_an_end_token_is_its_id_but_for_the_tokenizers_own(llm: LLM) -> None:
    (own,) = token_ids_of(llm, END_OF_TOKENIZER)
    for end, reason in ((SECOND_END, SECOND_END), (own, None)):
        output = generate(llm, SamplingParams(max_tokens=9, logits_processors=(writing(70, end),)))
        assert (output.token_ids, output.finish_reason, output.stop_reason) == ([70, end], "stop", reason)
    output = generate(llm, greedy(9, stop_token_ids=(own,), logits_processors=(writing(70, own),)))
    assert (output.token_ids, output.stop_reason) == ([70, own], own)


def test_a_repetition_is_the_reason_of_its_end(llm: LLM) -> None:
    detection = RepetitionDetectionParams(max_pattern_size=2, min_count=3)
    output = generate(llm, greedy(9, repetition_detection=detection, logits_processors=(writing(70),)))
    assert (output.token_ids, output.finish_reason) == ([70] * 3, "repetition")
    assert output.stop_reason == "repetition_detected"


@pytest.mark.parametrize(("num_left_out", "text"), [(0, "a€b€"), (1, "a€b"), (2, "a€b"), (3, "a€b")])
def test_half_a_character_is_in_no_text(llm: LLM, num_left_out: int, text: str) -> None:
    written = token_ids_of(llm, "a€b€")
    assert len(written) == 8
    written = written[: len(written) - num_left_out]
    params = greedy(len(written), logprobs=0, logits_processors=(writing(*written),))
    output = generate(llm, params)
    assert (output.token_ids, output.text) == (written, text)
    assert output.logprobs is not None
    decoded = [position[one].decoded_token for one, position in zip(written, output.logprobs, strict=True)]
    assert decoded == ["a", "", "", "€", "b", "", "", "€"][: len(written)]


def test_a_choice_has_log_probabilities_among_the_choices() -> None:
    formed = StructuredOutputsParams(choice=list(CHOICES))
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=20, structured_outputs=formed)
    with LLM(kv_cache_memory_bytes=4 << 20) as llm:
        output = generate(llm, params)
    assert output.text in CHOICES
    assert output.logprobs is not None
    before = ""
    for token_id, position in zip(output.token_ids, output.logprobs, strict=True):
        assert sum(math.exp(one.logprob) for one in position.values()) == pytest.approx(1.0, abs=1e-4)
        ways = {choice.removeprefix(before) for choice in CHOICES if choice.startswith(before)}
        for one in position.values():
            text = one.decoded_token or ""
            assert any(way.startswith(text) for way in ways) or ways == {""}
        before += position[token_id].decoded_token or "" if ways != {""} else ""


@pytest.mark.parametrize("dtype", ["half", "float16"])
def test_float16_is_computed_on_a_cpu(dtype: str, folder: Path) -> None:
    params: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "logprobs": 5, "prompt_logprobs": 0}
    with LLM.from_engine_args(tiny_args(folder, dtype=dtype)) as llm:
        assert llm.apply_model(lambda model: model.dtype) == [torch.float16]
        (output,) = llm.generate(PROMPT, SamplingParams(**params), use_tqdm=False)
    expected = reference_logits(folder, PROMPT).float().log_softmax(dim=-1)
    assert output.prompt_logprobs is not None
    rows = [*output.prompt_logprobs[1:], *(output.outputs[0].logprobs or [])]
    assert len(rows) == len(PROMPT)
    for row, position in zip(expected, rows, strict=True):
        for token_id, one in (position or {}).items():
            assert one.logprob == pytest.approx(row[token_id].item(), abs=0.03)
