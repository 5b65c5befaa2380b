"""Pauses that fail: requests wait afterwards only if they did before."""

from __future__ import annotations

import asyncio

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_router.operations.dispatch_hold import DispatchHold
from baton_router.operations.pauses import Pauses

Failure = ErrorCode | RequestError | None
NO_WORKER = RequestError(ErrorCode.UNAVAILABLE, "none is registered")


class Site:
    """A router with one worker, whose answer to each action can be set, and `num_begun` requests."""

    def __init__(self) -> None:
        self.failures: dict[ControlAction, Failure] = {}
        self.num_begun = 0
        self.is_held = False
        hold = DispatchHold(lambda event: setattr(self, "is_held", bool(event.why)), lambda: self.num_begun)
        self.pauses = Pauses(self._control, hold, lambda: None)

    async def pause(self, mode: str, timeout_s: float = 1.0) -> None:
        await self.pauses.pause(mode, timeout_s, clear_cache=True)

    async def _control(
        self, action: ControlAction, argument: str, timeout_s: float
    ) -> dict[str, ControlResult]:
        failure = self.failures.get(action)
        if isinstance(failure, RequestError):
            raise failure
        return {"w1": ControlResult(control_id=1, code=failure)}


@pytest.mark.parametrize("failure", [ErrorCode.DEADLINE_EXCEEDED, NO_WORKER], ids=["result", "error"])
@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
async def test_a_pause_that_a_worker_fails_holds_no_requests(mode: str, failure: Failure) -> None:
    site = Site()
    site.failures = dict.fromkeys((ControlAction.SLEEP, ControlAction.RESET_PREFIX_CACHE), failure)
    await asyncio.gather(site.pause(mode), return_exceptions=True)
    assert not site.is_held
    assert not site.pauses.is_paused


async def test_a_pause_that_fails_does_not_end_the_earlier_one() -> None:
    site = Site()
    site.num_begun = 1
    await site.pause("keep")
    with pytest.raises(RequestError, match="1 requests still run"):
        await site.pause("wait", 0.01)
    assert site.is_held
    site.failures = {ControlAction.SLEEP: ErrorCode.DEADLINE_EXCEEDED}
    await site.pause("keep")
    assert site.is_held


async def test_a_pause_that_fails_does_not_end_one_that_began_after_it() -> None:
    site = Site()
    site.num_begun = 1
    waiting = asyncio.create_task(site.pause("wait", 0.05))
    await asyncio.sleep(0)
    await site.pause("keep")
    with pytest.raises(RequestError):
        await waiting
    assert site.is_held


@pytest.mark.parametrize("failure", [ErrorCode.WORKER_LOST, NO_WORKER], ids=["result", "error"])
async def test_requests_go_on_after_a_resume_that_a_worker_fails(failure: Failure) -> None:
    site = Site()
    await site.pause("keep")
    site.failures = {ControlAction.WAKE_UP: failure}
    await asyncio.gather(site.pauses.resume(1.0), return_exceptions=True)
    assert not site.is_held
    site.failures = {ControlAction.SLEEP: ErrorCode.DEADLINE_EXCEEDED}
    await site.pause("keep")
    assert not site.is_held
