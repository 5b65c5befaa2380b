"""All workers keep the same adapters loaded, those that join later too."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.sessions.control_messages import Control, ControlAction, ControlResult
from baton_router.core.fleet.fleet import Fleet
from baton_router.operations.dispatch_hold import DispatchHold
from baton_router.operations.operations import Operations, read_results
from tests.builders import make_worker_info
from tests.integration.scripted_worker import until

PIN = ControlAction.PIN_ADAPTERS


class Site:
    """A router's operations, and workers that answer at once."""

    def __init__(self, **places: int) -> None:
        self.fleet = Fleet()
        self.operations = Operations(
            self.fleet, self._answer, DispatchHold(lambda event: None, lambda: 0), lambda: 0
        )
        self.places: dict[str, int] = {}
        self.pinned: dict[str, list[int] | None] = {}
        """None is what a worker has that nobody has told."""
        self.lost: set[str] = set()
        self.silent: set[str] = set()
        for name, most in places.items():
            self.join(name, most)

    def join(self, name: str, most: int) -> None:
        self.places[name], self.pinned[name] = most, None
        self.fleet.join(make_worker_info(name))
        self.operations.on_joined(name)

    def leave(self, name: str) -> None:
        self.fleet.leave(name)
        self.operations.on_left(name, "it is silent")

    async def pin(self, *numbers: int, timeout_s: float = 5.0) -> None:
        read_results(await self.operations.control(PIN, json.dumps({"numbers": numbers}), timeout_s))

    def _answer(self, name: str, control: Control) -> None:
        numbers, code = json.loads(control.argument_json)["numbers"], None
        if name in self.lost:
            asyncio.get_running_loop().call_soon(self.leave, name)
            return
        if name in self.silent:
            return
        if len(numbers) > self.places[name]:
            code = ErrorCode.INVALID_REQUEST
        else:
            self.pinned[name] = numbers
        result = ControlResult(control_id=control.control_id, code=code, message="too many")
        asyncio.get_running_loop().call_soon(self.operations.on_result, name, result)


async def test_all_workers_pin_or_all_keep_what_they_had() -> None:
    site = Site(a=2, b=1)
    for before in ([], [1]):
        await site.pin(*before)
        with pytest.raises(RequestError, match="worker b: too many") as caught:
            await site.pin(1, 2)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert site.pinned == {"a": before, "b": before}
    assert (await site.operations.control(PIN, '{"numbers": [2]}', 5.0)).keys() == {"a", "b"}
    assert site.pinned == {"a": [2], "b": [2]}


async def test_a_worker_that_joins_pins_what_the_others_have() -> None:
    site = Site(a=2)
    site.join("early", 2)
    await site.pin(1, 2)
    site.leave("early")
    site.join("early", 2)
    site.join("late", 2)
    await until(lambda: site.pinned == {"a": [1, 2], "early": [1, 2], "late": [1, 2]})
    await site.pin()
    site.leave("late")
    site.join("late", 2)
    await until(lambda: site.pinned["late"] == [])


async def test_a_silent_worker_is_named_before_its_caller_gives_up() -> None:
    """Callers wait `_GRACE_S` longer than their timeout: undoing the pin takes no second one."""
    site = Site(a=1, b=1)
    site.silent = {"b"}
    begun_s = time.monotonic()
    with pytest.raises(RequestError, match="worker b: no answer to pin_adapters within 3 s"):
        await site.pin(1, timeout_s=3.0)
    assert time.monotonic() - begun_s < 3.0 + 4.5
    assert site.pinned == {"a": [], "b": None}


async def test_a_worker_that_was_away_while_a_pin_was_undone_undoes_it() -> None:
    site = Site(a=1, b=0)
    with pytest.raises(RequestError, match="worker b: too many"):
        await site.pin(1)
    site.leave("a")
    site.join("a", 1)
    await until(lambda: site.pinned["a"] == [])


async def test_a_worker_that_joins_without_places_says_so(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(a=2)
    await site.pin(1, 2)
    site.join("small", 1)
    await until(lambda: bool(caplog.messages))
    assert caplog.messages == ["worker small does not keep the adapters that the others do: too many"]


async def test_a_worker_that_is_lost_meanwhile_is_left_out_unless_none_remains() -> None:
    site = Site(a=1, b=1)
    site.lost = {"b"}
    await site.pin(1)
    site.lost = {"a"}
    with pytest.raises(RequestError, match="worker a: the worker was lost"):
        await site.pin(2)
    site.lost = set()
    with pytest.raises(RequestError, match="pin_adapters reaches no worker"):
        await site.pin(2)
    site.join("a", 1)
    await until(lambda: site.pinned["a"] == [1])


async def test_a_wrong_pin_is_refused_before_any_worker_is_asked() -> None:
    site = Site(a=1)
    for argument, names in (("{}", ()), ('{"numbers": ["1"]}', ()), ('{"numbers": [1]}', ("a",))):
        with pytest.raises(InvalidRequestError, match=r"argument is|worker_ids is \['a'\]; allowed: none"):
            await site.operations.control(PIN, argument, 5.0, names)
    assert site.pinned == {"a": None}
