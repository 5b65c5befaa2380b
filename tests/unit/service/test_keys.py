"""Which keys let a call in, and what the name of their holder gives away."""

from __future__ import annotations

import pytest

from baton_service.keys import Keys, bearer


def test_without_keys_everybody_may_ask() -> None:
    assert Keys().tenant("") == Keys().tenant("Bearer any") == ""


def test_each_key_has_a_tenant_whose_name_does_not_tell_the_key() -> None:
    keys = Keys(("first", "second"))
    first, second = keys.tenant(bearer("first")), keys.tenant("bearer second ")
    assert first
    assert second
    assert first != second
    assert "first" not in first
    assert Keys(("first",)).tenant(bearer("first")) == first


@pytest.mark.parametrize(
    "given", ["", "first", "Bearer", "Bearer ", "Bearer firs", "Basic first", "Bearer \udce9"]
)
def test_nothing_else_lets_in(given: str) -> None:
    assert Keys(("first",)).tenant(given) is None
