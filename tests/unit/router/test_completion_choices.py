"""Choices of a completion: where in the text each token begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_router.http.completions.choices import ChoiceWriter, ShownPrompt
from baton_router.http.completions.schemas import CompletionRequest
from baton_router.requests.generation import Delta
from baton_router.text.tokenization import Tokenizer
from tests.unit.router.folders import byte_fallback_json, byte_level_json, make_tokenizer

BODY = CompletionRequest(logprobs=0)
FILES = {"bytes": byte_level_json(adds_bos=True), "fallback": byte_fallback_json()}


def offsets(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], echo: str, output: str, *, skips_special: bool
) -> tuple[list[int], str]:
    """The offsets of all tokens, and the text that they point into."""
    params = SamplingParams(skip_special_tokens=skips_special)
    spec = RequestSpec(request_id="r", prompt_token_ids=tuple(prompt_ids), params=params)
    writer = ChoiceWriter(0, BODY, ShownPrompt(spec=spec, echo=echo), tokenizer)
    ids = tokenizer.encode(output, add_special_tokens=False)
    choice = writer.write(Delta(index=0, text=output, token_ids=ids, finish_reason=None))
    assert choice.logprobs is not None
    return [*choice.logprobs.text_offset], choice.text


@pytest.mark.parametrize("skips_special", [True, False])
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("echo", ["<|im_start|>hello<|im_end|> a", "hello hello", "a<|im_end|>"])
def test_tokens_of_an_echoed_text_begin_where_it_has_them(
    tmp_path: Path, kind: str, echo: str, skips_special: bool
) -> None:
    tokenizer = make_tokenizer(tmp_path, tokenizer_json=FILES[kind])
    prompt_ids = tokenizer.encode(echo)
    found, text = offsets(tokenizer, prompt_ids, echo, "hello", skips_special=skips_special)
    for token_id, offset in zip(prompt_ids, found, strict=False):
        spelled = tokenizer.added_text(token_id)
        if spelled in (None, "<|im_start|>", "<|im_end|>"):
            assert text[offset:].lstrip().startswith(spelled or tokenizer.token_text(token_id).lstrip())
    assert found == sorted(found)
    assert found[len(prompt_ids)] == len(echo)


def test_tokens_of_an_echo_without_special_tokens_begin_where_that_has_them(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, tokenizer_json=FILES["bytes"])
    prompt_ids = tokenizer.encode("<|im_start|>ab", add_special_tokens=False)
    found, _ = offsets(tokenizer, prompt_ids, "ab", "c", skips_special=True)
    assert found == [0, 0, 1, 2]
