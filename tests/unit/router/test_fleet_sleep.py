"""Workers that join while the others sleep, or are paused, give up the same before they get a request."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.sessions.control_messages import (
    AWAY_AT,
    ENGINE_MEMORY,
    Control,
    ControlAction,
    ControlResult,
    EnginePart,
)
from baton_core.sessions.router_messages import Prefill, Refused, ToWorker
from baton_core.sessions.worker_info import WorkerLoad
from baton_router.core.fleet.fleet import Fleet
from baton_router.operations import fleet_sleep
from baton_router.operations.dispatch_hold import DispatchHold
from baton_router.operations.operations import Operations
from baton_router.operations.transfer_probing import TransferProbing
from tests.builders import make_worker_info
from tests.integration.scripted_worker import until

SLEEP, WAKE_UP = ControlAction.SLEEP, ControlAction.WAKE_UP


class Site:
    """A router's operations, and workers that answer at once."""

    def __init__(self, *names: str) -> None:
        self.fleet = Fleet()
        hold = DispatchHold(lambda event: None, lambda: 0)
        self.transfers = TransferProbing("r", self.fleet, self._send, is_on=True)
        self.operations = Operations(
            self.fleet, self._answer, hold, lambda: 0, held_probes=self.transfers.held
        )
        self.probed: list[tuple[str, str]] = []
        """Workers that were asked to compute the prompt of a probe, and the probes."""
        self.away: dict[str, frozenset[EnginePart]] = {}
        self.refusals: list[str] = []
        """Workers that refuse their next control."""
        for name in names:
            self.join(name)

    def join(self, name: str) -> None:
        self.away[name] = frozenset()
        self.fleet.join(make_worker_info(name))
        self.operations.on_joined(name)

    def restart(self, name: str) -> None:
        self.fleet.leave(name)
        self.operations.on_left(name, "it is silent")
        self.join(name)

    async def control(self, action: ControlAction, argument: str = "{}", *names: str) -> None:
        results = await self.operations.control(action, argument, 5.0, names)
        for result in results.values():
            if result.code is not None:
                raise RequestError(result.code, result.message)

    def _send(self, name: str, message: ToWorker) -> None:
        if isinstance(message, Prefill):
            self.probed.append((name, message.spec.request_id))

    def load(self, name: str) -> WorkerLoad:
        return {info.worker_id: load for info, load in self.fleet.workers()}[name]

    def _answer(self, name: str, control: Control) -> None:
        code = ErrorCode.OVERLOADED if name in self.refusals else None
        argument = msgspec.json.decode(control.argument_json)
        if code is not None:
            self.refusals.remove(name)
        elif control.action is SLEEP:
            self.away[name] |= AWAY_AT[argument["level"]]
        elif control.action is WAKE_UP:
            self.away[name] -= frozenset(argument.get("tags") or self.away[name])
        result = ControlResult(
            control_id=control.control_id,
            code=code,
            is_asleep=bool(self.away[name] & ENGINE_MEMORY),
            is_paused=EnginePart.SCHEDULING in self.away[name],
        )
        self.fleet.update_status(name, result)
        asyncio.get_running_loop().call_soon(self.operations.on_result, name, result)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("names", [("a",), ("a", "b")], ids=["alone", "two"])
async def test_a_worker_that_joins_sleeps_as_the_others_do(names: tuple[str, ...], level: int) -> None:
    site = Site(*names)
    await site.control(SLEEP, f'{{"level": {level}}}')
    site.restart("a")
    assert not site.load("a").is_serving
    site.fleet.report(1.0, "a", WorkerLoad())
    assert not site.load("a").is_serving, "its first report comes before it has been told"
    await until(lambda: site.away["a"] == AWAY_AT[level])
    await site.control(WAKE_UP)
    assert site.load("a").is_serving
    site.restart("a")
    assert site.load("a").is_serving


async def test_a_worker_that_joins_has_the_parts_that_the_others_have_taken_back() -> None:
    site = Site("a", "b")
    await site.control(SLEEP, '{"level": 2}')
    await site.control(SLEEP, '{"level": 0}')
    await site.control(WAKE_UP, '{"tags": ["weights"]}')
    site.restart("a")
    await until(lambda: site.away["a"] == {EnginePart.KV_CACHE, EnginePart.SCHEDULING})
    await site.control(WAKE_UP, '{"tags": ["kv_cache"]}')
    site.restart("b")
    await until(lambda: site.away["b"] == {EnginePart.SCHEDULING})


async def test_a_worker_that_joins_stays_awake_where_one_alone_sleeps_or_none_could() -> None:
    site = Site("a", "b")
    await site.control(SLEEP, '{"level": 1}', "b")
    site.restart("a")
    assert site.load("a").is_serving
    site.refusals = ["b"]
    with pytest.raises(RequestError):
        await site.control(SLEEP, '{"level": 1}')
    site.restart("a")
    assert site.load("a").is_serving


async def test_a_worker_that_refuses_to_sleep_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_sleep, "_FOLLOW_AGAIN_S", 0.01)
    site = Site("a")
    await site.control(SLEEP, '{"level": 1}')
    site.refusals = ["a", "a"]
    site.restart("a")
    await until(lambda: site.away["a"] == ENGINE_MEMORY)
    assert not site.refusals


@pytest.mark.parametrize("level", [0, 1])
async def test_workers_sleep_once_no_transfer_is_probed(level: int) -> None:
    site = Site("a", "b")
    for name in ("a", "b"):
        site.transfers.on_joined(make_worker_info(name))
    assert len(site.probed) == 2
    sleeping = asyncio.create_task(site.control(SLEEP, f'{{"level": {level}}}'))
    await asyncio.sleep(0.05)
    assert sleeping.done() is (level == 0), "a pause takes nothing away from a probe"
    for name, probe in site.probed:
        site.transfers.take(name, Refused(request_id=probe, code=ErrorCode.OVERLOADED, message="full"))
    await sleeping
    site.transfers.close()
