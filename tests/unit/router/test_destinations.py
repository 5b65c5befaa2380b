"""The order of the routers that a gateway is told."""

from __future__ import annotations

import pytest

from baton_router.gateway.destinations import order_destinations


@pytest.mark.parametrize("hint", ["[fd00::1]:8000", "[fd00::1]", "fd00::1", " fd00::1 "])
def test_a_subset_names_routers_by_address_or_host(hint: str) -> None:
    own, other = "10.0.0.1:8000", "[fd00::1]:8000"
    assert order_destinations(own, [other], "", [hint]) == (other,)
    assert order_destinations(own, [other], "", ["10.0.0.1", hint]) == (own, other)
    assert order_destinations(own, [other], "", ["fd00::2"]) == ()
