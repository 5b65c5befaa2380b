"""The controls of an engine of several ranks, as their leader does them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import pytest
from torch import nn

from baton_core.sessions.control_messages import ControlAction
from baton_core.worker.worker_events import RunControl
from baton_worker.controls.engine_controls import EngineControls
from baton_worker.controls.engine_operations import CallWorker, WakeUp
from baton_worker.controls.worker_controls import WorkerControls
from baton_worker.ranks.rank_channel import AnswerFrame
from baton_worker.ranks.rank_group import ANSWER_WITHIN_S, RankGroup

ASKED = CallWorker(method="asked")


class Group:
    """A leader's view of a group whose other rank answers with a list."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.is_loading: list[bool] = []
        self.limits_s: list[float] = []

    def call(self, action: str, argument_json: str, within_s: float) -> Callable[[], list[Any]]:
        self.limits_s.append(within_s)
        return lambda: [[1]]

    @contextmanager
    def explaining(self) -> Iterator[None]:
        yield

    @contextmanager
    def loading(self) -> Iterator[None]:
        self.is_loading.append(True)
        yield
        self.is_loading.append(False)

    def in_order(self, own: Any, others: list[Any]) -> list[Any]:
        return [own, *others]

    def end(self, reason: str) -> None:
        self.ends.append(reason)


def controls_of(group: Group, asked: Callable[[], Any]) -> EngineControls:
    engine = Mock(group=group)
    engine.loaded.runner.asked = asked
    return EngineControls(engine)


def test_all_ranks_answer_with_what_json_has() -> None:
    assert controls_of(Group(), lambda: (1,)).run_on_ranks(ASKED) == [[1], [1]]
    assert controls_of(Group(), lambda: {1: 2}).run_on_ranks(ASKED)[0] == {"1": 2}


def test_functions_may_take_as_long_as_their_caller_waits() -> None:
    group = Group()
    controls = controls_of(group, lambda: 0)
    controls._engine.is_sleeping = False  # type: ignore[misc]
    for timeout_s in (None, 5.0, 7200, math.nan):
        controls.run_on_ranks(CallWorker(method="asked", timeout_s=timeout_s))
    controls.run_on_ranks(WakeUp())
    assert group.limits_s == [math.inf, ANSWER_WITHIN_S, 7200, ANSWER_WITHIN_S, ANSWER_WITHIN_S]


@pytest.mark.parametrize(
    ("action", "argument_json"),
    [
        (ControlAction.COLLECTIVE_RPC, '{"method": "asked"}'),
        (ControlAction.APPLY_MODEL, '{"func": "builtins:callable"}'),
    ],
)
def test_a_worker_s_function_may_take_as_long_as_the_router_waits(
    action: ControlAction, argument_json: str
) -> None:
    group = Group()
    engine = Mock(group=group, away=frozenset(), weights="")
    engine.loaded.runner = Mock(asked=lambda: 1, model=nn.Module())
    engine.loaded.config.architecture = "Model"
    asked = RunControl(
        run_id=1,
        action=action,
        argument_json=argument_json,
        timeout_s=7200.0,
    )
    done = WorkerControls(engine, allows_functions=True).answer(asked)
    assert (json.loads(done.result_json), group.limits_s) == ([1, [1]], [7200.0])


def test_a_caller_may_wait_for_longer_than_the_system_can() -> None:
    answers: SimpleQueue[AnswerFrame | None] = SimpleQueue()
    answers.put(AnswerFrame(result_json="1"))
    assert RankGroup._take_answers(Mock(_followers=[Mock()]), [answers], 1e12) == [1]


def test_a_leader_that_is_interrupted_ends_the_group() -> None:
    """The others' answers would be taken for those of the next call."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    group = Group()
    with pytest.raises(KeyboardInterrupt):
        controls_of(group, interrupt).run_on_ranks(ASKED)
    assert group.ends == ["the leader of the model's ranks did not end CallWorker: KeyboardInterrupt()"]


def test_ranks_may_be_silent_while_they_wake_up() -> None:
    group = Group()
    controls = controls_of(group, lambda: 0)
    controls._engine.is_sleeping = False  # type: ignore[misc]
    controls.run_on_ranks(WakeUp())
    assert group.is_loading == [True, False]
