from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.adapter import Adapter
from baton_core.sessions.control_messages import ControlResult
from baton_router.process.adapter_loading import AdapterLoading
from baton_router.requests.served_adapters import ServedAdapters

ADAPTER = Adapter(name="one", digest="d" * 64, path="/one")


def load(digest: str = "", **codes: ErrorCode | None) -> tuple[Adapter, ...]:
    """Load an adapter where each worker's check ends with a code; return what is served."""

    async def answer(result: Any) -> Any:
        return result

    results = {name: ControlResult(control_id=1, code=code) for name, code in codes.items()}
    router: Any = SimpleNamespace(
        operations=SimpleNamespace(control=lambda *_: answer(results)),
        share=SimpleNamespace(put_adapter=answer),
    )
    threads: Any = SimpleNamespace(run=lambda *_, **__: answer(ADAPTER))
    adapters = ServedAdapters(("base",), 16)
    asyncio.run(AdapterLoading(adapters, threads, router, 5.0).load("one", "/one", digest=digest))
    return adapters.adapters


def test_an_adapter_is_served_though_a_worker_is_lost_during_its_check() -> None:
    assert load(a=None, b=ErrorCode.WORKER_LOST) == (ADAPTER,)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.WORKER_LOST])
def test_an_adapter_that_does_not_fit_or_that_no_worker_has_checked_is_not_served(code: ErrorCode) -> None:
    with pytest.raises(RequestError) as caught:
        load(a=code, b=ErrorCode.WORKER_LOST)
    assert caught.value.code is code


def test_a_folder_that_has_changed_since_it_was_named_is_not_served() -> None:
    assert load(digest=ADAPTER.digest, a=None) == (ADAPTER,)
    with pytest.raises(RequestError, match="the adapter of '/one' could not be loaded: its folder is not as"):
        load(digest="e" * 64, a=None)
