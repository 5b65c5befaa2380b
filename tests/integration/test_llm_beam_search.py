"""Beam search against Transformers' own on small models."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton import LLM, BeamSearchParams, LoRARequest
from baton_core.errors import InvalidRequestError
from tests.adapters import make_adapter
from tests.integration.tiny_llm import greedy, tiny_args
from tests.models import EOS_TOKEN_ID, make_model, make_prompt, reference_model

PROMPTS = [make_prompt(length, seed=length, vocab_size=64) for length in (5, 40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("beams") / "llama", "llama", vocab_size=64)


def reference(
    folder: Path, prompt: list[int], params: BeamSearchParams, end_id: int | None
) -> list[tuple[list[int], float]]:
    """Transformers' beams, the best first, each with its score."""
    model = reference_model(folder)
    model.generation_config.eos_token_id = end_id
    model.generation_config.pad_token_id = 0
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=params.max_tokens,
            num_beams=params.beam_width,
            num_return_sequences=params.beam_width,
            length_penalty=params.length_penalty,
            early_stopping="never",
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
    scores = found.sequences_scores.tolist()
    return [(tokens.tolist(), score) for tokens, score in zip(found.sequences, scores, strict=True)]


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -0.5])
@pytest.mark.parametrize("beam_width", [2, 3, 4])
def test_beams_are_those_of_transformers(
    llm: LLM, folder: Path, beam_width: int, length_penalty: float
) -> None:
    params = BeamSearchParams(beam_width, 12, length_penalty=length_penalty, include_stop_str_in_output=True)
    for prompt, output in zip(PROMPTS, llm.beam_search(PROMPTS, params), strict=True):
        expected = reference(folder, prompt, params, EOS_TOKEN_ID)
        assert len(output.sequences) == beam_width
        for sequence, (tokens, score) in zip(output.sequences, expected, strict=True):
            # Transformers pads what ended early with 0, which is no token that it draws here.
            num_tokens = len(sequence.tokens)
            assert sequence.tokens == tokens[:num_tokens]
            assert not any(tokens[num_tokens:])
            length = num_tokens - len(prompt)
            assert sequence.cum_logprob / length**length_penalty == pytest.approx(score, abs=1e-4)
            assert len(sequence.logprobs) == length
            is_ended = sequence.tokens[-1] == EOS_TOKEN_ID
            assert sequence.finish_reason == ("stop" if is_ended else "length")
            assert sequence.stop_reason == (EOS_TOKEN_ID if is_ended else None)


def test_some_beam_ends_before_its_last_token(llm: LLM) -> None:
    params = BeamSearchParams(4, 12)
    sequences = [one for output in llm.beam_search(PROMPTS, params) for one in output.sequences]
    assert {one.finish_reason for one in sequences} == {"stop", "length"}
    ended = next(one for one in sequences if one.finish_reason == "stop")
    assert ended.tokens[-1] != EOS_TOKEN_ID, "the end token is left out"


def test_end_tokens_may_be_ignored(llm: LLM, folder: Path) -> None:
    params = BeamSearchParams(3, 10, ignore_eos=True)
    (output,) = llm.beam_search(PROMPTS[1], params)
    expected = reference(folder, PROMPTS[1], params, None)
    assert [one.tokens for one in output.sequences] == [tokens for tokens, _ in expected]


def test_a_search_ends_where_the_context_does(llm: LLM) -> None:
    prompt = make_prompt(llm.llm_engine.max_model_len - 3, seed=1, vocab_size=64)
    (output,) = llm.beam_search([prompt], BeamSearchParams(2, 50, ignore_eos=True))
    assert [len(one.tokens) for one in output.sequences] == [llm.llm_engine.max_model_len] * 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"beam_width": 0}, "beam_width is 0; allowed: an integer of at least 1"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"temperature": 0.5}, "temperature is 0.5; allowed: 0, as beam search draws nothing"),
    ],
)
def test_what_beams_cannot_do_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 3, **given})


def test_a_width_beyond_the_logprobs_that_are_allowed_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="beam_width is 20; allowed: 1 to 10, half of max_logprobs"):
        llm.beam_search(PROMPTS, BeamSearchParams(20, 3))


def test_each_prompt_of_a_search_has_its_adapter(llm: LLM, folder: Path, tmp_path: Path) -> None:
    adapters = [LoRARequest(str(n), n, str(make_adapter(tmp_path / str(n), folder, seed=n))) for n in (1, 2)]
    params = BeamSearchParams(2, 4, ignore_eos=True)
    alone = llm.beam_search(PROMPTS[0], params)
    args = replace(tiny_args(folder), enable_lora=True, max_loras=2)
    with LLM.from_engine_args(args) as adapted:
        for adapter in adapters:
            alone += adapted.beam_search(PROMPTS[1], params, adapter)
        given = [PROMPTS[0], PROMPTS[1], PROMPTS[1]]
        assert adapted.beam_search(given, params, [None, *adapters]) == alone
        with pytest.raises(InvalidRequestError, match="lora_request is 'a list of 2'; allowed: a list of 1"):
            adapted.beam_search(given[:1], params, adapters)
    assert len({output.sequences[0].text for output in alone}) == 3


def test_one_beam_is_the_greedy_completion(llm: LLM) -> None:
    (output,) = llm.beam_search(PROMPTS[1], BeamSearchParams(1, 10, ignore_eos=True))
    (expected,) = llm.generate(PROMPTS[1], greedy(10), use_tqdm=False)
    assert output.sequences[0].tokens == PROMPTS[1] + expected.outputs[0].token_ids


@pytest.mark.parametrize("skipped", [True, False])
def test_special_tokens_are_left_out_of_the_text_or_shown(skipped: bool) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=3, skip_special_tokens=skipped)
    with LLM(dtype="float32", kv_cache_memory_bytes=16 << 20) as llm:
        tokenizer = llm.get_tokenizer()
        ids = tokenizer.encode("<|im_start|>user\nHello", add_special_tokens=False)
        (output,) = llm.beam_search([{"prompt_token_ids": ids}], params)
        for sequence in output.sequences:
            assert sequence.text == tokenizer.decode(sequence.tokens, skip_special_tokens=skipped)
            assert ("<|im_start|>" in sequence.text) is not skipped
