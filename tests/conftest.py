"""Settings of all suites: a loaded machine is slow, and that alone fails no property.

`BATON_EXAMPLES=2000` draws that many examples of each property which names no number of its own.
`BATON_EXHAUSTIVE=1` runs the tests with the marker `exhaustive`, too.
`--hypothesis-profile soak --timeout 0` draws 20,000: what `tests/fuzz` is for.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "baton",
    settings(
        deadline=None,
        max_examples=int(os.environ.get("BATON_EXAMPLES", "25")),
        suppress_health_check=[HealthCheck.too_slow],
    ),
)
settings.register_profile("soak", settings.get_profile("baton"), max_examples=20_000)
settings.load_profile("baton")
gc.disable()  # a fifth of the time in which tests are collected


@pytest.fixture(scope="session", autouse=True)
def _authorities() -> Iterator[None]:
    """Every client of httpx would read the certificates of all public authorities: 27 ms of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        shared = functools.cache(httpx.create_ssl_context)
        patch.setattr("httpx._transports.default.create_ssl_context", shared)
        yield


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A command that configures logging writes to a stream that ends with its test."""
    root = logging.getLogger()
    handlers, level = set(root.handlers), root.level
    yield
    for handler in set(root.handlers) - handlers:
        root.removeHandler(handler)
    root.setLevel(level)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is exhaustive, unless BATON_EXHAUSTIVE is set."""
    if os.environ.get("BATON_EXHAUSTIVE"):
        return
    dear = [item for item in items if item.get_closest_marker("exhaustive")]
    if dear:
        config.hook.pytest_deselected(items=dear)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage again, but not among modules and tests, which stay to the end."""
    gc.freeze()
    gc.enable()
