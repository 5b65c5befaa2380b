"""The controls that operators run on a worker: one at a time, between steps.

Part of a worker's core. What needs the engine is handed to the shell, which answers when it is done; until
then, and while the engine sleeps, no step is planned. A check of new weights alone runs beside the steps.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import asdict, dataclass
from typing import Final

from baton_core.blocks.block_pool import BlockPool
from baton_core.errors import BatonError, ErrorCode, OverloadedError, RequestError
from baton_core.sessions.control_messages import (
    BESIDE_STEPS,
    Control,
    ControlAction,
    ControlResult,
    EnginePart,
)
from baton_core.sessions.pin_arguments import read_pinned
from baton_core.sessions.reset_arguments import resets_running_requests
from baton_core.sessions.sleep_arguments import read_sleep_level
from baton_core.worker.worker_events import ControlDone, RunControl, SendToRouter, WorkerEffect
from baton_worker.core.adapter_cache import AdapterCache
from baton_worker.core.scheduler import Scheduler
from baton_worker.core.worker_status import WorkerStatus

MAX_QUEUED: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWork:
    """Work that a worker would lose if it slept, and that it ends first when it drains."""

    num_requests: int = 0
    num_offers: int = 0
    """Prompts whose blocks are kept for other workers."""
    num_transfers: int = 0

    def __bool__(self) -> bool:
        return bool(self.num_requests or self.num_offers or self.num_transfers)

    def __str__(self) -> str:
        return f"{self.num_requests} requests, {self.num_offers} leases and {self.num_transfers} transfers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    router_id: str
    control: Control
    deadline: float
    """The time when it must have begun."""

    @property
    def action(self) -> ControlAction:
        return self.control.action


class Controls:
    """The controls of one worker. Each that runs has a number, so late answers are dropped."""

    def __init__(self, pool: BlockPool, adapters: AdapterCache, scheduler: Scheduler) -> None:
        self.status = WorkerStatus()
        self._pool, self._adapters, self._scheduler = pool, adapters, scheduler
        self.weights = ""
        """Hash of the weights that the engine has."""
        self._queue: deque[_Asked] = deque()
        self._running: dict[int, _Asked] = {}
        """Controls that the shell runs, by number: at most one check of weights, and one of the others."""
        self._switch: _Asked | None = None
        """A switch of weights that waits until the worker has no open work, or that runs."""
        self._resets: list[_Asked] = []
        """Resets that take the blocks of running sequences, once no other worker is to get any of them."""
        self._num_begun = 0
        self._away: frozenset[EnginePart] = frozenset()
        self._is_giving_up = False
        """True if what runs takes the engine's memory away."""
        self._lacks_weights = False
        """True if a sleep of level 2 has dropped the weights, or is about to."""

    @property
    def is_asleep(self) -> bool:
        """True if the engine lacks what a request needs, or is about to: none may be taken."""
        return self._is_giving_up or bool(self._away - {EnginePart.SCHEDULING})

    @property
    def sleep_level(self) -> int:
        """0 while it is awake or only paused; 2 while it sleeps without its weights, else 1."""
        if not self.is_asleep:
            return 0
        return 2 if self._lacks_weights else 1

    @property
    def is_paused(self) -> bool:
        """True if it begins no request for a while: it was paused, or its weights are to be switched."""
        return EnginePart.SCHEDULING in self._away or self._switch is not None

    @property
    def holds_steps(self) -> bool:
        """True if no step may be planned."""
        return bool(self._queue or self._exclusive or self._away) or self._may_reset

    @property
    def _exclusive(self) -> _Asked | None:
        """The control that runs between steps."""
        running = self._running.values()
        return next((asked for asked in running if asked.action not in BESIDE_STEPS), None)

    @property
    def _may_reset(self) -> bool:
        """True if a reset waits, and a preemption frees every block in use."""
        if not self._resets:
            return False
        held = {block_id for seq in self._scheduler.preemptible() for block_id in seq.tables.held()}
        return len(held) == self._pool.num_used

    def require_accepting(self, weights: str, has_begun: bool) -> None:
        """Refuse a request for `weights`; while a switch waits, those alone that have not begun elsewhere.

        Raises:
            RequestError: UNAVAILABLE, the worker sleeps or drains, or has or will have other weights.
        """
        if self.is_asleep:
            raise RequestError(ErrorCode.UNAVAILABLE, "the worker sleeps")
        self.status.require_accepting()
        if weights not in ("", self.weights):
            text = f"weights is {weights!r}; allowed: {self.weights!r}, which this worker has loaded"
            raise RequestError(ErrorCode.UNAVAILABLE, text)
        if self._switch is not None and (self._exclusive is self._switch or not has_begun):
            raise RequestError(ErrorCode.UNAVAILABLE, "the worker is about to load other weights")

    def take(self, now: float, router_id: str, control: Control, work: OpenWork) -> list[WorkerEffect]:
        """Answer what the core can do at once; queue the rest for `begin`."""
        asked = _Asked(router_id=router_id, control=control, deadline=now + control.timeout_s)
        match control.action:
            case ControlAction.IS_SLEEPING:
                return [self._answer(asked, json.dumps(bool(self._away)))]
            case ControlAction.RESET_PREFIX_CACHE:
                return self._take_reset(asked)
            case ControlAction.SET_ROLE | ControlAction.DRAIN | ControlAction.UNDRAIN:
                return [self._change_status(asked, work)]
            case ControlAction.CHECK_WEIGHTS | ControlAction.CHECK_ADAPTER:
                return [self._check_beside(asked)]
            case ControlAction.PIN_ADAPTERS:
                return [self._pin_adapters(asked)]
            case ControlAction.SWITCH_WEIGHTS:
                return self._take_switch(asked)
        if len(self._queue) >= MAX_QUEUED:
            text = f"{len(self._queue)} controls wait at this worker; allowed: {MAX_QUEUED}"
            return [self._refuse(asked, OverloadedError(text))]
        self._queue.append(asked)
        return []

    def begin(self, work: OpenWork) -> list[WorkerEffect]:
        """Begin the next one unless one runs. Not while a step is in flight."""
        effects: list[WorkerEffect] = []
        if self._may_reset:
            self._scheduler.preempt_all(self._pool.now)
            effects, self._resets = [self._reset(asked) for asked in self._resets], []
        if self._switch is not None and self._exclusive is None and not work:
            self._pool.forget_cached()
            return [*effects, *self._adapters.drop_idle(), self._run(self._switch)]
        while self._queue and self._exclusive is None:
            asked = self._queue.popleft()
            try:
                level = self._prepare_sleep(asked.control, work)
            except BatonError as error:
                effects.append(self._refuse(asked, error))
                continue
            self._is_giving_up = level > 0
            self._lacks_weights |= level == 2
            effects += self._adapters.drop_idle() if level == 2 else []
            effects.append(self._run(asked))
        return effects

    def on_done(self, done: ControlDone) -> list[WorkerEffect]:
        """End a control that runs."""
        asked = self._running.pop(done.run_id, None)
        if asked is None:
            return []
        if asked.action not in BESIDE_STEPS:
            self._away, self._is_giving_up = done.away, False
            self._lacks_weights &= EnginePart.WEIGHTS in done.away
            self.weights = done.weights or self.weights
        if asked is self._switch:
            self._switch = None
        return [self._answer(asked, done.result_json, done.code, done.message)]

    def next_deadline(self) -> float | None:
        """The time when `expire` is due."""
        return min((asked.deadline for asked in self._waiting), default=None)

    def expire(self, now: float, work: OpenWork) -> list[WorkerEffect]:
        """Refuse those that have waited too long; a reset forgets what it can."""
        late = [asked for asked in self._waiting if asked.deadline <= now]
        self._queue = deque(asked for asked in self._queue if asked.deadline > now)
        exclusive = self._exclusive
        refused: list[WorkerEffect] = []
        for asked in late:
            awaited = "the step in flight" if exclusive is None else str(exclusive.action)
            if asked in self._resets:
                self._resets.remove(asked)
                refused.append(self._reset(asked))
                continue
            if asked is self._switch:
                self._switch, awaited = None, str(work) if work else awaited
            text = f"{asked.action} waited {asked.control.timeout_s:g} s for {awaited} to end"
            refused.append(self._refuse(asked, RequestError(ErrorCode.DEADLINE_EXCEEDED, text)))
        return refused

    @property
    def _waiting(self) -> list[_Asked]:
        """Controls that have not begun."""
        switch = self._switch
        has_switch = switch is not None and self._exclusive is not switch
        return [*self._queue, *self._resets, *([switch] if switch is not None and has_switch else [])]

    def check_invariants(self) -> None:
        """Raise AssertionError when more wait than may, or blocks are in use without their memory."""
        assert max(len(self._queue), len(self._resets)) <= MAX_QUEUED
        assert not self.is_asleep or self._pool.num_free == self._pool.num_blocks, "asleep, but has blocks"

    def _run(self, asked: _Asked) -> RunControl:
        self._num_begun += 1
        self._running[self._num_begun] = asked
        argument_json = asked.control.argument_json
        return RunControl(
            run_id=self._num_begun,
            action=asked.action,
            argument_json=argument_json,
            timeout_s=asked.control.timeout_s,
        )

    def _take_reset(self, asked: _Asked) -> list[WorkerEffect]:
        """Forget what nobody uses; a reset that takes running sequences' blocks too waits for `begin`."""
        try:
            if not resets_running_requests(asked.control.argument_json):
                return [self._reset(asked)]
        except BatonError as error:
            return [self._refuse(asked, error)]
        if len(self._resets) >= MAX_QUEUED:
            text = f"{len(self._resets)} resets wait at this worker; allowed: {MAX_QUEUED}"
            return [self._refuse(asked, OverloadedError(text))]
        self._resets.append(asked)
        return []

    def _reset(self, asked: _Asked) -> WorkerEffect:
        counts = {"num_forgotten": self._pool.forget_cached(), "num_in_use": self._pool.num_used}
        return self._answer(asked, json.dumps(counts))

    def _check_beside(self, asked: _Asked) -> WorkerEffect:
        """Begin a check at once: it needs no engine, and reads one file after the other."""
        if any(one.action is asked.action for one in self._running.values()):
            return self._refuse(asked, OverloadedError(f"{asked.action} runs; allowed: one at a time"))
        return self._run(asked)

    def _pin_adapters(self, asked: _Asked) -> SendToRouter:
        try:
            self._adapters.pin(read_pinned(asked.control.argument_json))
        except BatonError as error:
            return self._refuse(asked, error)
        return self._answer(asked, "true")

    def _take_switch(self, asked: _Asked) -> list[WorkerEffect]:
        if self._switch is not None:
            error = OverloadedError("a switch of weights is open; allowed: one at a time")
            return [self._refuse(asked, error)]
        if EnginePart.WEIGHTS in self._away:
            text = f"the engine sleeps without {' and '.join(sorted(self._away))}; allowed: wake_up first"
            return [self._refuse(asked, RequestError(ErrorCode.UNAVAILABLE, text))]
        self._switch = asked
        return []

    def _change_status(self, asked: _Asked, work: OpenWork) -> SendToRouter:
        """Answered with what is open: a worker that drains is empty when nothing is."""
        try:
            self.status.change(asked.control)
        except BatonError as error:
            return self._refuse(asked, error)
        return self._answer(asked, json.dumps(asdict(work)))

    def _prepare_sleep(self, control: Control, work: OpenWork) -> int:
        """Empty the cache for a sleep that takes its memory away; returns its level, 0 where it is none.

        Raises:
            InvalidRequestError: the argument is wrong.
            OverloadedError: something would be lost.
        """
        if control.action is not ControlAction.SLEEP:
            return 0
        level = read_sleep_level(control.argument_json)
        if level and work:
            raise OverloadedError(f"sleep has to wait: level is {level}; allowed with {work} open: 0")
        if level:
            self._pool.forget_cached()
        return level

    def _refuse(self, asked: _Asked, error: BatonError) -> SendToRouter:
        return self._answer(asked, "null", error.code, str(error))

    def _answer(
        self, asked: _Asked, result_json: str, code: ErrorCode | None = None, message: str = ""
    ) -> SendToRouter:
        result = ControlResult(
            control_id=asked.control.control_id,
            result_json=result_json,
            code=code,
            message=message,
            is_asleep=self.is_asleep,
            is_paused=self.is_paused,
            role=self.status.role,
            is_role_fixed=self.status.is_role_fixed,
            is_draining=self.status.is_draining,
            weights=self.weights,
        )
        return SendToRouter(router_id=asked.router_id, message=result)
