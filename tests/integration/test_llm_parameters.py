"""Parameters of `LLM` in this process: changed objects, many sequences, closed schemas, names of requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import LLM, SamplingParams, StructuredOutputsParams, derived_seed
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args


def test_a_request_may_have_hundreds_of_sequences(llm: LLM) -> None:
    params = greedy(2, n=300, temperature=1.0, seed=4, logprobs=0)
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert [one.index for one in output.outputs] == list(range(300))
    assert len({tuple(one.token_ids) for one in output.outputs}) > 200
    last = greedy(2, temperature=1.0, seed=derived_seed(4, 299), logprobs=0)
    assert llm.generate(PROMPT, last, use_tqdm=False)[0].outputs[0].token_ids == output.outputs[299].token_ids


def test_a_request_keeps_the_parameters_that_it_was_made_with(llm: LLM) -> None:
    params = greedy(3)
    params.max_tokens = 4
    llm.enqueue(PROMPT, params)
    params.max_tokens = 5
    params.logit_bias = {7: 100.0}
    llm.enqueue(PROMPT, params)
    first, second = llm.wait_for_completion(use_tqdm=False)
    assert len(first.outputs[0].token_ids) == 4
    assert second.outputs[0].token_ids == [7] * 5
    params.temperature = -1.0
    with pytest.raises(ValueError, match=r"temperature is -1\.0; allowed: a finite number from 0"):
        llm.generate(PROMPT, params, use_tqdm=False)


def test_default_parameters_are_the_caller_s_own(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    params.max_tokens = 2
    assert llm.get_default_sampling_params().max_tokens == 16
    assert isinstance(params, SamplingParams)


def test_requests_are_named_by_their_number(folder: Path) -> None:
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        outputs = llm.generate([PROMPT, PROMPT[:3], PROMPT[:7]], greedy(1), use_tqdm=False)
        assert [output.request_id for output in outputs] == ["0", "1", "2"]
        assert llm.enqueue(PROMPT, greedy(1)) == ["3"]


def test_schemas_are_closed_where_the_grammar_says_so(llm: LLM) -> None:
    """Beside `allOf` with two schemas, objects stay open where nothing closes them."""
    named = {"properties": {"a": {"type": "string", "pattern": "^x$"}}, "required": ["a"]}
    schema = {"type": "object", **named, "allOf": [{}, {}]}
    texts = []
    for is_closed in (False, True):
        grammar = StructuredOutputsParams(schema, None, None, None, None, True, is_closed)
        params = greedy(30, n=16, temperature=1.0, seed=1, ignore_eos=False, structured_outputs=grammar)
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
        texts.append({one.text for one in output.outputs})
    assert any(text.startswith('{"a":"x","') for text in texts[0])
    assert texts[1] == {'{"a":"x"}'}


def test_a_parser_that_implies_its_start_thinks_from_the_first_token_on(folder: Path) -> None:
    with LLM.from_engine_args(tiny_args(folder, reasoning_parser="deepseek_r1")) as llm:
        tokenizer = llm.get_tokenizer()
        end = tokenizer.encode("</think>", add_special_tokens=False)
        (limited,) = llm.generate(PROMPT, greedy(12, thinking_token_budget=2), use_tqdm=False)
        assert list(limited.outputs[0].token_ids[2 : 2 + len(end)]) == end
        form = StructuredOutputsParams(choice=["left"])
        (free,) = llm.generate(PROMPT, greedy(3, structured_outputs=form), use_tqdm=False)
        assert not "left".startswith(free.outputs[0].text)
