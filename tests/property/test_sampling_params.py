"""Sampling parameters made of anything: valid, or refused by the field's name."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import MAX_N, SamplingParams

FIELDS = [field.name for field in fields(SamplingParams)]
INTEGERS = st.one_of(st.integers(), st.sampled_from([-(2**63) - 1, -(2**63), -1, 0, 2**31, 2**63, 10**400]))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.just("\ud800"),
)
LISTS = st.one_of(
    st.lists(SCALARS, max_size=4),
    st.lists(st.text(min_size=1), max_size=40),
    st.dictionaries(SCALARS, SCALARS),
)


@given(values=st.dictionaries(st.sampled_from(FIELDS), SCALARS | LISTS))
def test_any_values_are_taken_or_refused_by_name(values: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**values)
    except InvalidRequestError as error:
        refused = error
    else:
        check(params)
        return
    assert refused.field in values
    assert str(refused).startswith(f"{refused.field} is ")
    assert "; allowed: " in str(refused)


def check(params: SamplingParams) -> None:
    assert 1 <= params.n <= MAX_N
    assert 0 <= params.temperature < float("inf")
    assert 0 < params.top_p <= 1
    assert params.seed != -1
    assert all(text.encode() for text in params.stop)
    for token_ids in (params.stop_token_ids, params.allowed_token_ids, params.logprob_token_ids):
        assert all(0 <= token_id < 2**31 for token_id in token_ids or ())
    assert params.max_tokens is None or params.min_tokens <= params.max_tokens
    assert all(math.isfinite(bias) for bias in (params.logit_bias or {}).values())
    assert not (params.reads_prefix_cache and params.prompt_logprobs is not None)
