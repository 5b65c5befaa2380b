"""The controls of an engine of several ranks, as their leader does them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from baton_worker.controls.engine_controls import EngineControls
from baton_worker.controls.engine_operations import CallWorker, WakeUp

ASKED = CallWorker(method="asked")


class Group:
    """A leader's view of a group whose other rank answers with a list."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.is_loading: list[bool] = []

    def call(self, action: str, argument_json: str) -> Callable[[], list[Any]]:
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
