from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.kv.pairs import BACKEND_PARAMS, Site, open_site


@pytest.fixture(params=BACKEND_PARAMS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def site(backend: str) -> Iterator[Site]:
    with open_site(backend) as opened:
        yield opened
