from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.adapter import Adapter
from baton_core.sessions.control_messages import ControlResult
from baton_core.sessions.router_messages import Generate
from baton_router.process.adapter_loading import AdapterLoading
from baton_router.requests import served_adapters
from baton_router.requests.served_adapters import ServedAdapters
from baton_service.wire.wire_commands import decode_command, encode_command
from tests.builders import make_request

ADAPTER = Adapter(name="one", digest="d" * 64, path="/one")


def load(
    digest: str = "", number: int = 0, shown_name: str = "", **codes: ErrorCode | None
) -> tuple[Adapter, ...]:
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
    loading = AdapterLoading(adapters, threads, router, 5.0)
    asyncio.run(loading.load("one", "/one", digest=digest, number=number, shown_name=shown_name))
    return adapters.adapters


def test_an_adapter_is_served_though_a_worker_is_lost_during_its_check() -> None:
    assert load(a=None, b=ErrorCode.WORKER_LOST) == (ADAPTER,)


def test_workers_know_an_adapter_by_the_name_that_a_caller_in_python_gave_it() -> None:
    (adapter,) = load(number=7, shown_name="sql", a=None)
    assert adapter == replace(ADAPTER, number=7, shown_name="sql")
    received = decode_command(encode_command(Generate(spec=replace(make_request("r"), adapter=adapter))))
    assert isinstance(received, Generate)
    assert received.spec.adapter == replace(ADAPTER, name="sql", number=7)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.WORKER_LOST])
def test_an_adapter_that_does_not_fit_or_that_no_worker_has_checked_is_not_served(code: ErrorCode) -> None:
    with pytest.raises(RequestError) as caught:
        load(a=code, b=ErrorCode.WORKER_LOST)
    assert caught.value.code is code


def test_a_folder_that_has_changed_since_it_was_named_is_not_served() -> None:
    assert load(digest=ADAPTER.digest, a=None) == (ADAPTER,)
    with pytest.raises(RequestError, match="the adapter of '/one' could not be loaded: its folder is not as"):
        load(digest="e" * 64, a=None)


def test_adapters_of_callers_in_python_give_way_where_too_many_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A training may name thousands of adapters, each once; its caller has one served again on demand."""
    monkeypatch.setattr(served_adapters, "MAX_ADAPTERS", 3)
    adapters = ServedAdapters(("base",), 16)
    adapters.add(ADAPTER)
    for number in (1, 2, 3, 2):
        adapters.add(replace(ADAPTER, name=str(number), number=number), replaces=True)
    assert [one.name for one in adapters.adapters] == ["one", "2", "3"]
    for name in "23":
        adapters.remove(name)
        adapters.add(replace(ADAPTER, name=f"served {name}"))
    with pytest.raises(RequestError, match="3 adapters are served; allowed: 3"):
        adapters.add(replace(ADAPTER, name="4", number=4))
