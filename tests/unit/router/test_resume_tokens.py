from __future__ import annotations

from base64 import urlsafe_b64encode
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import RequestSpec
from baton_router.requests.resume_tokens import (
    MAX_AGE_S,
    MAX_AHEAD_S,
    MAX_CHARACTERS,
    Fingerprints,
    ResumeTicket,
    ResumeTokens,
    require_same,
)
from tests.builders import make_identity
from tests.prompt_embeds import embeds_of

TOKENS = ResumeTokens("the fleet's")
NOW_S = 1_800_000_000
SPEC = RequestSpec(
    request_id="r1",
    prompt_token_ids=(5, 6, 7),
    params=SamplingParams(seed=7, logit_bias={9: 1.0, 3: -1.0}, stop=("end",)),
)
IDENTITY = make_identity()


def ticket_of(
    spec: RequestSpec = SPEC, tokens: ResumeTokens = TOKENS, created_s: int = NOW_S
) -> ResumeTicket:
    prints = tokens.fingerprints(spec, "tenant", IDENTITY)
    return ResumeTicket(
        request_id=spec.request_id, seed=spec.params.seed or 0, created_s=created_s, fingerprints=prints
    )


def refusal(token: str, tokens: ResumeTokens = TOKENS, now_s: float = NOW_S) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        tokens.read(token, now_s)
    assert caught.value.field == "resume_token"
    return str(caught.value)


@given(
    request_id=st.text(max_size=128),
    seed=st.integers(-(2**63), 2**63 - 1),
    prints=st.lists(st.binary(min_size=8, max_size=8), min_size=4, max_size=4),
)
def test_what_is_written_is_read_again(request_id: str, seed: int, prints: list[bytes]) -> None:
    if not request_id.isprintable():
        request_id = "r1"
    prompt, parameters, model, owner = prints
    fingerprints = Fingerprints(prompt=prompt, parameters=parameters, model=model, owner=owner)
    ticket = ResumeTicket(request_id=request_id, seed=seed, created_s=NOW_S, fingerprints=fingerprints)
    token = TOKENS.write(ticket)
    assert len(token) <= MAX_CHARACTERS
    assert token.replace("-", "").replace("_", "").isalnum()
    assert token.isascii()
    assert ResumeTokens("the fleet's").read(token, NOW_S) == ticket


@given(st.text() | st.binary().map(lambda data: urlsafe_b64encode(data).decode()))
def test_anything_else_is_refused(text: str) -> None:
    assert refusal(text).endswith("allowed: one that a router of this fleet wrote")


@given(position=st.integers(0), character=st.characters(max_codepoint=127))
def test_a_changed_character_is_found(position: int, character: str) -> None:
    token = TOKENS.write(ticket_of())
    position %= len(token)
    changed = token[:position] + character + token[position + 1 :]
    if changed != token:
        refusal(changed)


@given(data=st.binary(max_size=200))
def test_a_forged_seal_makes_no_other_error(data: bytes) -> None:
    """Without a secret anybody can write seals."""
    tokens = ResumeTokens()
    token = urlsafe_b64encode(data + tokens._seal(data)).rstrip(b"=").decode()
    with suppress(InvalidRequestError):
        assert tokens.read(token, NOW_S).seed is not None


def test_tokens_of_another_secret_are_foreign() -> None:
    token = ResumeTokens("another").write(ticket_of())
    assert "one that a router of this fleet wrote" in refusal(token)
    assert "one that a router of this fleet wrote" in refusal(token, ResumeTokens())


@pytest.mark.parametrize(
    ("age_s", "is_good"),
    [(MAX_AGE_S, True), (MAX_AGE_S + 1, False), (-MAX_AHEAD_S, True), (-MAX_AHEAD_S - 1, False)],
)
def test_a_token_has_an_age(age_s: int, is_good: bool) -> None:
    token = TOKENS.write(ticket_of())
    if is_good:
        assert TOKENS.read(token, NOW_S + age_s).seed == 7
    else:
        text = f"resume_token is '{age_s} s old'; allowed: 0 to {MAX_AGE_S} s old"
        assert refusal(token, now_s=NOW_S + age_s) == text


def test_an_age_that_no_clock_has_is_refused() -> None:
    assert "s old; allowed" not in refusal(TOKENS.write(ticket_of(created_s=-(2**63))))


def test_the_fingerprint_of_a_prompt_is_made_with_the_secret() -> None:
    one, other = (tokens.fingerprints(SPEC, "", IDENTITY) for tokens in (TOKENS, ResumeTokens("another")))
    assert one.prompt != other.prompt


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"prompt_token_ids": (5, 6, 8)}, "another prompt"),
    ({"prompt_embeds": (embeds_of(torch.ones(2, 4)),)}, "another prompt"),
    ({"cache_salt": "s"}, "another key or cache_salt"),
    ({"params": replace(SPEC.params, seed=8)}, "other sampling parameters"),
    ({"params": replace(SPEC.params, stop=("End",))}, "other sampling parameters"),
    ({"params": replace(SPEC.params, max_tokens=None)}, "other sampling parameters"),
    (
        {"params": replace(SPEC.params, structured_outputs=StructuredOutputsParams(regex="a+"))},
        "other sampling parameters",
    ),
]


@pytest.mark.parametrize(("change", "what"), CHANGES)
def test_another_request_is_refused_by_what_differs(change: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        require_same(ticket_of(), ticket_of(replace(SPEC, **change)).fingerprints)
    text = f"resume_token is 'of a request with {what}'; allowed: the token of this very request"
    assert str(caught.value) == text


def test_a_ticket_fits_the_same_request_whatever_its_name_and_the_order_of_its_biases() -> None:
    params = replace(SPEC.params, logit_bias={3: -1.0, 9: 1.0})
    again = replace(SPEC, request_id="r2", priority=3, params=params)
    require_same(ticket_of(), TOKENS.fingerprints(again, "tenant", IDENTITY))
    with pytest.raises(InvalidRequestError, match="another key or cache_salt"):
        require_same(ticket_of(), TOKENS.fingerprints(SPEC, "", IDENTITY))


def test_another_model_is_refused_once_both_are_known() -> None:
    ticket, other = ticket_of(), replace(IDENTITY, dtype="bfloat16")
    with pytest.raises(InvalidRequestError, match="another model"):
        require_same(ticket, TOKENS.fingerprints(SPEC, "tenant", other))
    require_same(ticket, TOKENS.fingerprints(SPEC, "tenant", None))
    moved_otherwise = replace(IDENTITY, transport="tcp")
    require_same(ticket, TOKENS.fingerprints(SPEC, "tenant", moved_otherwise))
