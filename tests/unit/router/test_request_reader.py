from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import ErrorCode, InvalidConfigError, InvalidRequestError, RequestError
from baton_core.requests.pooling import PoolingModel, PoolingTask
from baton_core.requests.sampling_params import MAX_N, SamplingParams
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import RequestSpec
from baton_router.requests.generation import GenerationRequest, PoolingRequest
from baton_router.requests.request_limits import ReasoningMarkers, RequestLimits
from baton_router.requests.request_reader import PromptReader, bounded
from baton_router.requests.served_adapters import ServedAdapters
from baton_router.text.chat_template import Conversation
from baton_router.text.large_texts import LARGE
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from tests.unit.router.folders import byte_level_json, write_model_folder

HI = Conversation(messages=({"role": "user", "content": "hi"},))
BROKEN_REGEX = StructuredOutputsParams(regex="[")
MARKERS = ReasoningMarkers(start="<|im_start|>", end="<|im_end|>")
"""Markers that are special tokens of the model."""
EMBED = PoolingRequest(task=PoolingTask.EMBED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model_folder(tmp_path)


def read(
    folder: Path,
    request: GenerationRequest,
    limits: RequestLimits | None = None,
    max_model_len: int = 128,
    pooling: PoolingModel | None = None,
) -> RequestSpec:
    model = read_model_folder(folder)
    reader = PromptReader(
        ServedAdapters(("tiny", "small")), model, Tokenizer(model), limits or RequestLimits()
    )
    return reader.read(request, max_model_len=max_model_len, pooling=pooling)


def ask(**given: Any) -> GenerationRequest:
    return GenerationRequest(prompt="hello", sampling=given)


def test_a_request_gets_its_tokens_and_a_name_and_a_seed_of_its_own(folder: Path) -> None:
    specs = [read(folder, ask(seed=seed)) for seed in (None, -1)]
    tokenizer = Tokenizer(read_model_folder(folder))
    assert [spec.prompt_token_ids for spec in specs] == [tokenizer.encode("hello")] * 2
    assert len({spec.request_id for spec in specs}) == len({spec.params.seed for spec in specs}) == 2
    assert all(spec.params.seed is not None and spec.params.seed >= 0 for spec in specs)


def test_what_the_client_leaves_out_takes_the_models_defaults_then_batons(tmp_path: Path) -> None:
    generation = {"temperature": 0.5, "top_k": 20, "max_new_tokens": 7, "repetition_penalty": 1.5}
    folder = write_model_folder(tmp_path, generation_config=generation)
    params = read(folder, ask(temperature=0.0, n=2, seed=0)).params
    expected = SamplingParams(temperature=0.0, top_k=20, max_tokens=7, repetition_penalty=1.5, n=2, seed=0)
    assert params == expected


@pytest.mark.parametrize(("asked_for", "expected"), [(None, 3), (2, 3), (5, 5)])
def test_the_router_s_stream_interval_is_the_least(
    folder: Path, asked_for: int | None, expected: int
) -> None:
    limits = RequestLimits(stream_interval=3)
    assert read(folder, ask(stream_interval=asked_for), limits).params.stream_interval == expected
    with pytest.raises(InvalidConfigError, match="--stream-interval is 0; allowed: 1 or more"):
        RequestLimits(stream_interval=0)


def test_names_salts_and_priorities_are_kept(folder: Path) -> None:
    request = GenerationRequest(
        prompt=(0, 399), model="small", request_id="r" * 128, cache_salt="s" * 128, priority=-2
    )
    spec = read(folder, request)
    assert (spec.prompt_token_ids, spec.request_id) == ((0, 399), "r" * 128)
    assert (spec.cache_salt, spec.priority) == ("s" * 128, -2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"request_id": "r" * 129}, "request_id is 'r.*; allowed: at most 128"),
        ({"request_id": "a\nb"}, r"request_id is 'a\\nb'; allowed: .* printable"),
        ({"cache_salt": "s" * 129}, "cache_salt is 's.*; allowed: at most 128"),
        ({"priority": 2**31}, "priority is 2147483648; allowed: an integer from"),
        ({"prompt": (1, 400)}, "prompt is 400; allowed: token ids from 0 to 399"),
        ({"prompt": (5,) * 128}, "prompt is '128 tokens'; allowed: 1 to 127 tokens"),
        ({"prompt": (5,) * 128}, "127 tokens: this model's maximum context length is 128 tokens"),
        ({"prompt": (5,) * 129, "pooling": EMBED}, "128 tokens: .* maximum context length is 128 tokens"),
        ({"prompt": "a\ud800"}, r"prompt is 'a\\ud800'; allowed: text that UTF-8 can hold"),
        ({"prompt": "", "sampling": {}}, "prompt is '0 tokens'; allowed: 1 to 127 tokens"),
        ({"sampling": {"stop_token_ids": [400]}}, "stop_token_ids is 400; allowed: .* 0 to 399"),
        ({"sampling": {"allowed_token_ids": [1, 400]}}, "allowed_token_ids is 400; allowed: .* 0 to 399"),
        (
            {"sampling": {"allowed_token_ids": [1], "min_tokens": 2}},
            r"allowed_token_ids is \(1,\); allowed: what leaves a token to sample beside min_tokens",
        ),
        ({"sampling": {"logprob_token_ids": [400]}}, "logprob_token_ids is 400; allowed: .* 0 to 399"),
        ({"sampling": {"logit_bias": {"400": 1}}}, "logit_bias is 400; allowed: .* 0 to 399"),
        ({"sampling": {"bad_words": [" "]}}, "bad_words is ' '; allowed: words with"),
        ({"sampling": {"logprobs": 21}}, "logprobs is 21; allowed: 0 to 20, of which --max-logprobs decides"),
        ({"sampling": {"prompt_logprobs": -1}}, "prompt_logprobs is -1; allowed: 0 to 20"),
        ({"sampling": {"n": 65}}, "n is 65; allowed: 1 to 64, of which --max-n-sequences or VLLM"),
        ({"sampling": {"logits_processors": ["a:b"]}}, "logits_processors is 'a:b'; allowed: none"),
        (
            {"sampling": {"logits_processors": [len]}},
            "allowed: names; functions can be called in process alone",
        ),
        ({"sampling": {"thinking_token_budget": 5}}, "thinking_token_budget is 5; allowed: none.*parser"),
        ({"sampling": {"min_tokens": 128, "max_tokens": None}}, "min_tokens is 128; allowed: .*, the room"),
        ({"sampling": {"structured_outputs": BROKEN_REGEX}}, r"structured_outputs\.regex is '\['; allowed: "),
        ({"sampling": {"top_p": 2}}, "top_p is 2; allowed: a finite number over 0 to 1"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0; allowed: -1, or 1 to 127"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens is -2; allowed"),
        ({"truncate_prompt_tokens": 128}, "truncate_prompt_tokens is 128; allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_is_refused_by_field_value_and_what_is_allowed(
    folder: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read(folder, GenerationRequest(**{"prompt": "the world", **fields}))


def test_another_model_is_not_found(folder: Path) -> None:
    with pytest.raises(RequestError, match="model is 'other'; allowed: 'tiny', 'small'") as caught:
        read(folder, GenerationRequest(prompt="a", model="other"))
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(("most", "allowed"), [(0, (None, 0)), (2, (0, 2)), (-1, (-1, 399)), (400, (-1,))])
def test_the_operator_says_how_many_logprobs_there_may_be(
    folder: Path, most: int, allowed: tuple[int | None, ...]
) -> None:
    limits = RequestLimits(max_logprobs=most)
    for value in allowed:
        assert read(folder, ask(logprobs=value, prompt_logprobs=value), limits).params.logprobs == value
    with pytest.raises(InvalidRequestError, match="logprobs is"):
        read(folder, ask(logprobs=401 if most in (-1, 400) else -1), limits)


def test_a_number_of_logprobs_that_is_none_is_refused_to_the_operator() -> None:
    with pytest.raises(InvalidConfigError, match="--max-logprobs is -2; allowed: an integer from -1"):
        RequestLimits(max_logprobs=-2)


def test_the_operator_says_how_many_sequences_a_request_may_have(folder: Path) -> None:
    assert read(folder, ask(n=65), RequestLimits(max_n_sequences=65)).params.n == 65
    with pytest.raises(
        InvalidRequestError, match="n is 2; allowed: 1 to 1, of which --max-n-sequences or VLLM"
    ):
        read(folder, ask(n=2), RequestLimits(max_n_sequences=1))


@pytest.mark.parametrize("most", [0, MAX_N + 1])
def test_a_number_of_sequences_that_messages_cannot_hold_is_refused_to_the_operator(most: int) -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"--max-n-sequences is {most}; allowed: an integer from 1 to"
    ):
        RequestLimits(max_n_sequences=most)


def test_logits_processors_are_those_that_the_operator_names_and_any_in_process(folder: Path) -> None:
    named = RequestLimits(logits_processors=("package:one",))
    assert read(folder, ask(logits_processors=["package:one"]), named)
    with pytest.raises(InvalidRequestError, match="'package:two'; allowed: package:one"):
        read(folder, ask(logits_processors=["package:two"]), named)
    assert read(folder, ask(logits_processors=[len, "package:two"]), RequestLimits(is_in_process=True))


def test_a_bad_word_is_bad_at_the_beginning_and_behind_a_space(folder: Path) -> None:
    tokenizer = Tokenizer(read_model_folder(folder))
    words = read(folder, ask(bad_words=["world", " fox"])).bad_words
    assert words == tuple(tokenizer.encode(text) for text in ("world", " world", "fox", " fox"))


def test_thinking_is_counted_in_tokens_from_the_mark_that_begins_it(folder: Path) -> None:
    tokenizer = Tokenizer(read_model_folder(folder))
    (start,), (end,) = tokenizer.encode(MARKERS.start), tokenizer.encode(MARKERS.end)
    limits = RequestLimits(reasoning=MARKERS)
    for prompt, start_ids in (
        ((5, 6), (start,)),
        ((5, start, 6, end, 7), (start,)),
        ((start, 5), ()),
        ((start, 5, end, 6, start), ()),
    ):
        request = GenerationRequest(prompt=prompt, sampling={"thinking_token_budget": 3})
        thinking = ThinkingBudget(num_tokens=3, start_token_ids=start_ids, end_token_ids=(end,))
        assert read(folder, request, limits).thinking == thinking


@pytest.mark.parametrize(
    ("limit", "max_tokens", "kept"),
    [(2, 16, 2), (99, 16, 10), (-1, 16, 10), (-1, 123, 5), (-1, 200, 1), (-1, None, 10)],
)
def test_the_end_of_a_long_prompt_is_kept(
    folder: Path, limit: int, max_tokens: int | None, kept: int
) -> None:
    prompt = tuple(range(10))
    request = GenerationRequest(
        prompt=prompt, sampling={"max_tokens": max_tokens}, truncate_prompt_tokens=limit
    )
    assert read(folder, request).prompt_token_ids == prompt[-kept:]


def test_a_prompt_too_long_for_the_context_is_cut_to_what_it_holds(folder: Path) -> None:
    request = GenerationRequest(prompt=(5,) * 500, sampling={"max_tokens": None}, truncate_prompt_tokens=-1)
    assert len(read(folder, request).prompt_token_ids) == 127


def test_special_tokens_are_added_as_the_request_says(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, tokenizer_json=byte_level_json(adds_bos=True))
    for wanted, num_bos in ((None, 1), (True, 1), (False, 0)):
        request = GenerationRequest(prompt="hi", add_special_tokens=wanted)
        assert read(folder, request).prompt_token_ids.count(0) == num_bos


def test_a_template_of_a_request_needs_the_operators_trust(folder: Path) -> None:
    own = Conversation(messages=HI.messages, template="{{ messages[0].content }}!")
    with pytest.raises(InvalidRequestError, match=r"chat_template is 'a template'; allowed: none.*--trust"):
        read(folder, GenerationRequest(prompt=own))
    spec = read(folder, GenerationRequest(prompt=own), RequestLimits(trust_request_chat_template=True))
    assert spec.prompt_token_ids == Tokenizer(read_model_folder(folder)).encode("hi!")


@pytest.mark.parametrize(("max_tokens", "most"), [(None, 118), (200, 118), (118, 118), (3, 3)])
def test_a_request_may_generate_no_more_than_the_context_leaves(
    folder: Path, max_tokens: int | None, most: int
) -> None:
    spec = read(folder, ask(max_tokens=max_tokens))
    assert spec.params.max_tokens == max_tokens
    assert bounded(spec, 118 + len(spec.prompt_token_ids)).params.max_tokens == most


@pytest.mark.parametrize(("side", "first"), [("left", 1), ("right", 5)])
def test_types_move_with_their_tokens(side: str, first: int, folder: Path) -> None:
    pooling = PoolingRequest(task=PoolingTask.CLASSIFY, type_one_from=5, truncation_side=side)
    request = GenerationRequest(prompt=tuple(range(10)), truncate_prompt_tokens=6, pooling=pooling)
    spec = read(folder, request).pooling
    assert spec is not None
    assert spec.type_one_from == first
    with pytest.raises(InvalidRequestError, match="token_type_ids is 'ones'; allowed: zeros"):
        read(folder, request, pooling=PoolingModel(tasks=(PoolingTask.CLASSIFY,), labels=("a",)))


def test_a_prompt_to_pool_may_be_refused_instead_of_cut(folder: Path) -> None:
    request = GenerationRequest(
        prompt=(5,) * 10,
        prompt_field="texts",
        truncate_prompt_tokens=9,
        pooling=replace(EMBED, is_cut=False),
    )
    with pytest.raises(InvalidRequestError, match="texts is '10 tokens'; allowed: 1 to 9 tokens"):
        read(folder, request)


def test_a_text_far_over_the_longest_prompt_is_not_tokenized_whole(folder: Path) -> None:
    text, model = "a " * LARGE, read_model_folder(folder)
    reader = PromptReader(ServedAdapters(("tiny",)), model, Tokenizer(model))
    for pooling, most in ((None, 127), (EMBED, 128)):
        allowed = f"allowed: 1 to {most} tokens: this model's maximum context length is 128 tokens"
        with pytest.raises(InvalidRequestError, match=f"prompt is 'at least 2048 tokens'; {allowed}"):
            reader.read(GenerationRequest(prompt=text, pooling=pooling), max_model_len=128)
    cut = GenerationRequest(prompt=text, truncate_prompt_tokens=4)
    assert len(reader.read(cut, max_model_len=128).prompt_token_ids) == 4


def test_a_long_text_of_few_tokens_is_taken(tmp_path: Path) -> None:
    tokenizer = json.loads(byte_level_json(adds_bos=False))
    tokenizer["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    folder = write_model_folder(tmp_path, tokenizer_json=json.dumps(tokenizer))
    few = read(folder, GenerationRequest(prompt=" " * LARGE + "hello"))
    assert few.prompt_token_ids == read(folder, GenerationRequest(prompt="hello")).prompt_token_ids
