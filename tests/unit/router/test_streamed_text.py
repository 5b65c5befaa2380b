"""Streamed text against text decoded at once: fuzzed token streams through every kind of tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from baton_core.requests.sampling_params import SamplingParams
from baton_router.requests.request_text import IncrementalDetokenizer
from baton_router.text.tokenization import Tokenizer
from tests.unit.router.folders import make_tokenizer
from tests.unit.router.test_characters import up_to_the_last_character
from tests.unit.router.tokenizer_kinds import KINDS, tokenizer_json

CUTS = st.lists(st.integers(0, 40), max_size=6)


class Kind:
    """One tokenizer, and the library's own as the reference."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.backend = Backend.from_str(tokenizer_json(name))
        size = self.backend.get_vocab_size()
        self.fallback = {
            token_id: int(spelling[3:5], 16)
            for spelling, token_id in self.backend.get_vocab().items()
            if spelling.startswith("<0x")
        }
        added = st.sampled_from(sorted(self.backend.get_added_tokens_decoder()))
        bytes_ = st.sampled_from(self._ids_of_bytes())
        anything = st.integers(0, size + 2)  # some ids have no token, as in a padded vocabulary
        self.streams = st.lists(st.one_of(anything, added, bytes_), max_size=24)
        self.prompt = tuple(self.backend.encode("hello", add_special_tokens=False).ids)

    def _ids_of_bytes(self) -> list[int]:
        """Bytes with which characters begin and go on, where the vocabulary has such, else anything."""
        picked = [token for token, byte in self.fallback.items() if byte in b"\xe4\xbd\xa0\xf0\x9f A"]
        return picked or self.backend.encode("你😀é", add_special_tokens=False).ids

    def at_once(self, token_ids: Sequence[int], *, skip: bool, prompt: Sequence[int] = ()) -> str:
        """Return the text that the output adds to the prompt's when both are decoded together."""
        decode = self.tokenizer.decode
        before = decode(prompt, skip_special_tokens=skip)
        text = decode((*prompt, *token_ids), skip_special_tokens=skip)
        assert text.startswith(before)
        return text[len(before) :]

    def shown(self, token_ids: Sequence[int], *, skip: bool, prompt: Sequence[int] = ()) -> str:
        """Return `at_once` without bytes at the end that end no character."""
        text = self.at_once(token_ids, skip=skip, prompt=prompt)
        read = [one for one in token_ids if self.tokenizer.is_decoded(one, skip_special_tokens=skip)]
        data = b"".join(map(self.tokenizer.token_bytes, read))
        num_broken = len(data.decode(errors="replace")) - len(up_to_the_last_character(data))
        return text[: len(text) - num_broken]

    def by_bytes(self, token_ids: Sequence[int], *, skip: bool) -> str:
        """Spell tokens of byte fallback from their bytes instead of by the library."""
        data = b""
        for token_id in token_ids:
            added = self.backend.get_added_tokens_decoder().get(token_id)
            spelling = self.backend.id_to_token(token_id)
            if spelling is None or (skip and added is not None and added.special):
                continue
            byte = self.fallback.get(token_id)
            data += spelling.replace("▁", " ").encode() if byte is None else bytes([byte])
        text = data.decode(errors="replace")
        is_stripped = self.name in ("byte_fallback", "unigram_with_bytes")
        return text.removeprefix(" ") if is_stripped else text


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    folder = tmp_path_factory.mktemp(request.param)
    return Kind(request.param, make_tokenizer(folder, tokenizer_json=tokenizer_json(request.param)))


def stream(
    kind: Kind, token_ids: Sequence[int], cuts: Sequence[int], *, prompt: Sequence[int] = (), **params: Any
) -> tuple[str, int, str | None]:
    """Joined text, number of kept tokens, and the stop string, of tokens that come in pieces."""
    bounds = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    detokenizer = IncrementalDetokenizer(kind.tokenizer, prompt, SamplingParams(**params))
    deltas = [detokenizer.append(token_ids[start:end], end == bounds[-1]) for start, end in pairwise(bounds)]
    stops = [delta.stop_text for delta in deltas if delta.stop_text is not None]
    text = "".join(delta.text for delta in deltas)
    return text, sum(delta.num_kept_tokens for delta in deltas), stops[0] if stops else None


@settings(deadline=None)
@given(data=st.data(), cuts=CUTS, skip=st.booleans(), has_prompt=st.booleans())
def test_streamed_pieces_joined_are_the_text_decoded_at_once(
    kind: Kind, data: st.DataObject, cuts: list[int], skip: bool, has_prompt: bool
) -> None:
    token_ids = data.draw(kind.streams)
    prompt = kind.prompt if has_prompt else ()
    text, num_kept, _ = stream(kind, token_ids, cuts, prompt=prompt, skip_special_tokens=skip)
    assert (text, num_kept) == (kind.shown(token_ids, skip=skip, prompt=prompt), len(token_ids))


@settings(deadline=None, max_examples=50)
@given(data=st.data(), skip=st.booleans())
def test_decoding_at_once_is_the_librarys_and_keeps_characters_beside_broken_bytes(
    kind: Kind, data: st.DataObject, skip: bool
) -> None:
    token_ids = data.draw(kind.streams)
    text = kind.tokenizer.decode(token_ids, skip_special_tokens=skip)
    if kind.fallback:
        assert text == kind.by_bytes(token_ids, skip=skip)
    if not kind.fallback or "\ufffd" not in text:
        assert text == kind.backend.decode(token_ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(data=st.data(), cuts=CUTS, include=st.booleans(), min_tokens=st.integers(0, 6))
def test_the_first_stop_string_behind_min_tokens_ends_the_text(
    kind: Kind, data: st.DataObject, cuts: list[int], include: bool, min_tokens: int
) -> None:
    token_ids = data.draw(kind.streams)
    text = kind.shown(token_ids, skip=True)
    slices = st.tuples(st.integers(0, max(len(text) - 1, 0)), st.integers(1, 5))
    starts = data.draw(st.lists(slices, max_size=3))
    stop = [part for start, size in starts if (part := text[start : start + size])]
    params = {"stop": stop, "include_stop_str_in_output": include}
    got = stream(kind, token_ids, cuts, min_tokens=min_tokens, max_tokens=None, **params)
    exempt = shown_by(kind, token_ids[:min_tokens])
    if min_tokens >= len(token_ids):
        exempt = len(text)
    end = next((end for end in range(exempt + 1, len(text) + 1) if text.endswith(tuple(stop), 0, end)), None)
    if end is None:
        assert got == (text, len(token_ids), None)
        return
    found = max((part for part in stop if text.endswith(part, 0, end)), key=len)
    counts = range(1, len(token_ids))
    num_kept = next((count for count in counts if shown_by(kind, token_ids[:count]) >= end), len(token_ids))
    assert got == (text[: end if include else end - len(found)], num_kept, found)


def shown_by(kind: Kind, token_ids: Sequence[int]) -> int:
    """How many characters are complete once these tokens are there and more are to come."""
    detokenizer = IncrementalDetokenizer(kind.tokenizer, (), SamplingParams())
    return len(detokenizer.append(token_ids, False).text)


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_the_bytes_of_all_tokens_are_the_text(kind: Kind, data: st.DataObject) -> None:
    token_ids = data.draw(kind.streams)
    if kind.name == "suffixed":  # its spaces belong to pairs of tokens
        token_ids = token_ids[:1]
    data_ = b"".join(map(kind.tokenizer.token_bytes, token_ids))
    assert data_.decode(errors="replace") == kind.at_once(token_ids, skip=False, prompt=kind.prompt[-1:])
