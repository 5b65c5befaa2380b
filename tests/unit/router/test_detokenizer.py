from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.requests.sampling_params import SamplingParams
from baton_router.requests.request_text import DetokenizedDelta, IncrementalDetokenizer
from baton_router.text.tokenization import Tokenizer
from tests.unit.router.folders import (
    SPECIAL_TOKENS,
    TEXTS,
    byte_fallback_json,
    byte_level_token_id,
    make_tokenizer,
)
from tests.unit.router.tokenizer_kinds import tokenizer_json

_NUM_TOKENS = 332
"""Some more than the tokenizer has, as in a padded vocabulary."""
_WORDS = st.lists(st.sampled_from([*TEXTS, *SPECIAL_TOKENS, "stop", "st", "\n", " "]), max_size=6)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def fallback_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("fallback"), tokenizer_json=byte_fallback_json())


_BROKEN_UTF8 = st.lists(
    st.sampled_from([byte_level_token_id(byte) for byte in b"\xf0\x9f\x87\xaa\xe4\xbd\xa0\x80a"]), max_size=48
)


def split(token_ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    bounds = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    return [token_ids[start:end] for start, end in pairwise(bounds)]


def run(
    tokenizer: Tokenizer,
    parts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (),
    is_stop_token: bool = False,
) -> DetokenizedDelta:
    """Feed all parts; return the sum of the deltas."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, params)
    deltas = [detokenizer.append(part, False) for part in parts[:-1]]
    deltas.append(detokenizer.append(parts[-1], True, is_stop_token=is_stop_token))
    return DetokenizedDelta(
        text="".join(delta.text for delta in deltas),
        num_kept_tokens=sum(delta.num_kept_tokens for delta in deltas),
        stop_text=next((delta.stop_text for delta in deltas if delta.stop_text is not None), None),
    )


@settings(deadline=None)
@given(token_ids=_BROKEN_UTF8, prompt=_BROKEN_UTF8)
def test_broken_utf8_gives_the_text_of_decoding_at_once(
    tokenizer: Tokenizer, token_ids: list[int], prompt: list[int]
) -> None:
    parts = [[token] for token in token_ids] or [[]]
    text = tokenizer.decode(token_ids).rstrip("\ufffd")  # but at its end
    assert run(tokenizer, parts, SamplingParams(), prompt=prompt).text == text


@settings(deadline=None)
@given(words=_WORDS, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_text_with_emoji_and_combining_characters_survives_any_split(
    tokenizer: Tokenizer, fallback_tokenizer: Tokenizer, words: list[str], cuts: list[int]
) -> None:
    text = "".join(words)
    for each in (tokenizer, fallback_tokenizer):
        token_ids = each.encode(text)
        total = run(each, split(token_ids, cuts), SamplingParams(skip_special_tokens=False))
        assert total.text == each.decode(token_ids, skip_special_tokens=False)


@pytest.mark.parametrize("position", range(12))
def test_a_stop_string_is_found_at_every_position(tokenizer: Tokenizer, position: int) -> None:
    text = "a" * position + "<END>" + "a" * (11 - position)
    token_ids = tokenizer.encode(text)
    total = run(tokenizer, [[token] for token in token_ids], SamplingParams(stop=("<END>",)))
    assert (total.text, total.stop_text, total.num_kept_tokens) == ("a" * position, "<END>", position + 5)


def test_a_character_is_shown_only_with_its_last_byte(tokenizer: Tokenizer) -> None:
    *first, last = tokenizer.encode("🇪")
    detokenizer = IncrementalDetokenizer(tokenizer, (), SamplingParams())
    assert [detokenizer.append([token], False).text for token in first] == [""] * len(first)
    assert detokenizer.append([last], False).text == "🇪"


def test_half_a_character_at_the_end_is_left_out(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("ok 🇪")[:-1]
    total = run(tokenizer, [[token] for token in token_ids], SamplingParams())
    assert (total.text, total.num_kept_tokens) == ("ok ", len(token_ids))
    assert run(tokenizer, [token_ids], SamplingParams()).text == "ok "


def test_an_empty_last_delta_flushes(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("ab")
    total = run(tokenizer, [token_ids, []], SamplingParams(stop=("bc",)))
    assert (total.text, total.stop_text) == ("ab", None)


def test_special_tokens_are_shown_on_request(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("a<|im_end|>b")
    assert run(tokenizer, [token_ids], SamplingParams()).text == "ab"
    assert run(tokenizer, [token_ids], SamplingParams(skip_special_tokens=False)).text == "a<|im_end|>b"


@pytest.mark.parametrize(("include", "text"), [(False, "hello"), (True, "hello!")])
def test_the_text_of_the_token_that_ends_a_sequence_is_shown_only_on_request(
    tokenizer: Tokenizer, include: bool, text: str
) -> None:
    token_ids = tokenizer.encode("hello!")
    params = SamplingParams(stop_token_ids=(token_ids[-1],), include_stop_str_in_output=include)
    total = run(tokenizer, [token_ids], params, is_stop_token=True)
    assert (total.text, total.num_kept_tokens) == (text, len(token_ids))


def test_after_a_stop_string_nothing_more_is_shown_or_kept(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, (), SamplingParams(stop=("!",)))
    assert detokenizer.append(tokenizer.encode("a!b"), False).stop_text == "!"
    assert detokenizer.append(tokenizer.encode("c"), True) == DetokenizedDelta()


def test_the_space_after_the_prompt_is_kept(fallback_tokenizer: Tokenizer) -> None:
    prompt = fallback_tokenizer.encode("say")
    token_ids = fallback_tokenizer.encode("hello hello")
    assert fallback_tokenizer.decode(token_ids) == "hello hello"
    assert run(fallback_tokenizer, [token_ids], SamplingParams(), prompt=prompt).text == " hello hello"


@pytest.mark.parametrize("special", ["</s>", None])
def test_tokens_without_text_do_not_make_the_next_one_look_like_the_first(
    fallback_tokenizer: Tokenizer, special: str | None
) -> None:
    hello = fallback_tokenizer.encode("hello")
    between = [_NUM_TOKENS] if special is None else fallback_tokenizer.encode(special)
    assert run(fallback_tokenizer, [hello, between, hello], SamplingParams()).text == "hello hello"


def test_a_broken_byte_after_a_shown_character_does_not_take_it_back(fallback_tokenizer: Tokenizer) -> None:
    shown = fallback_tokenizer.encode("你")
    broken = fallback_tokenizer.encode("界")[-1:]
    after = fallback_tokenizer.encode("b")[-1:]
    assert run(fallback_tokenizer, [shown, broken, after], SamplingParams()).text == "你\ufffdb"


def test_broken_bytes_are_shown_with_the_text_behind_them(tokenizer: Tokenizer) -> None:
    continuation = tokenizer.encode("🇪")[-1]
    detokenizer = IncrementalDetokenizer(tokenizer, (), SamplingParams())
    assert [detokenizer.append([continuation], False).text for _ in range(64)] == [""] * 64
    assert detokenizer.append(tokenizer.encode("a"), False).text == "\ufffd" * 64 + "a"


def test_spaces_between_special_tokens_are_left_out_on_request(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, tokenizer_json=tokenizer_json("word_level"))
    token_ids = tokenizer.encode("hello<s><|im_end|><s>world")
    texts = {True: "hello <s> <|im_end|> <s> world", False: "hello <s><|im_end|><s> world"}
    for is_spaced, text in texts.items():
        params = SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=is_spaced)
        assert run(tokenizer, [token_ids], params).text == text


def test_without_detokenizing_there_is_no_text(tokenizer: Tokenizer) -> None:
    total = run(tokenizer, [tokenizer.encode("hello")], SamplingParams(detokenize=False))
    assert (total.text, total.num_kept_tokens) == ("", len(tokenizer.encode("hello")))


@pytest.mark.parametrize(
    ("min_tokens", "text"), [(0, "a"), (2, "a"), (3, "a!b!c"), (6, "a!b!c"), (7, "a!b!c!d")]
)
def test_a_stop_string_counts_if_it_ends_behind_min_tokens(
    tokenizer: Tokenizer, min_tokens: int, text: str
) -> None:
    token_ids = tokenizer.encode("a!b!c!d")
    assert len(token_ids) == 7
    params = SamplingParams(stop=("!b", "!d"), min_tokens=min_tokens)
    assert run(tokenizer, [token_ids], params).text == text


def test_a_run_of_skipped_tokens_costs_nothing(tokenizer: Tokenizer) -> None:
    special = tokenizer.encode("<|im_end|>")
    total = run(tokenizer, [[*special] * 5000, tokenizer.encode("x")], SamplingParams())
    assert (total.text, total.num_kept_tokens) == ("x", 5001)
