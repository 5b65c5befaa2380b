"""Which changes of roles a router refuses, because nobody would be left for a part of every request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import ControlAction
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_router.core.fleet.role_guard import require_served
from tests.builders import make_worker_info

PAIR = {"p": Role.PREFILL, "d": Role.DECODE}
THREE = {**PAIR, "m": Role.MIXED}
SET_ROLE, DRAIN = ControlAction.SET_ROLE, ControlAction.DRAIN


def workers(roles: dict[str, Role], **away: WorkerLoad) -> list[tuple[WorkerInfo, WorkerLoad]]:
    return [(make_worker_info(name, role), away.get(name, WorkerLoad())) for name, role in roles.items()]


def ask(
    action: ControlAction, known: list[Any], *names: str, must_split: bool = False, **argument: Any
) -> None:
    require_served(action, json.dumps(argument), names, known, must_split=must_split)


def test_what_leaves_somebody_for_each_part_passes() -> None:
    ask(DRAIN, workers(THREE), "d")
    ask(DRAIN, workers(THREE), "p", "d")
    ask(SET_ROLE, workers(PAIR), "p", role="mixed")
    ask(SET_ROLE, workers(THREE), "d", role="prefill")
    ask(ControlAction.UNDRAIN, workers(PAIR), "d")
    ask(ControlAction.SLEEP, workers(PAIR), "p", "d", level=2)


@pytest.mark.parametrize(
    ("action", "roles", "names", "argument", "lost"),
    [
        (DRAIN, PAIR, ("d",), {}, "decodes"),
        (DRAIN, PAIR, ("p",), {}, "prefills"),
        (DRAIN, THREE, ("p", "d", "m"), {}, "decodes and prefills"),
        (SET_ROLE, PAIR, ("d",), {"role": "prefill"}, "decodes"),
        (SET_ROLE, THREE, ("p", "d", "m"), {"role": "decode"}, "prefills"),
    ],
)
def test_what_leaves_nobody_for_a_part_is_refused_unless_forced(
    action: ControlAction, roles: dict[str, Role], names: tuple[str, ...], argument: dict[str, Any], lost: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ask(action, workers(roles), *names, **argument)
    allowed = f"workers without whom another one still {lost}, or any with force"
    assert str(caught.value) == f"worker_ids is {sorted(names)}; allowed: {allowed}"
    ask(action, workers(roles), *names, **argument, force=True)


def test_only_workers_that_take_requests_count_and_by_the_role_of_now() -> None:
    for away in (WorkerLoad(is_asleep=True), WorkerLoad(is_draining=True), WorkerLoad(role=Role.PREFILL)):
        with pytest.raises(InvalidRequestError, match="decodes"):
            ask(DRAIN, workers(THREE, m=away), "d")


def test_what_nobody_did_before_need_not_be_done() -> None:
    ask(DRAIN, workers({"d": Role.DECODE, "e": Role.DECODE}), "e")
    ask(SET_ROLE, workers({"d": Role.DECODE}, d=WorkerLoad(is_draining=True)), "d", role="prefill")


def test_where_every_request_is_split_two_workers_have_to_be_left() -> None:
    mixed = workers({"a": Role.MIXED, "b": Role.MIXED})
    ask(DRAIN, mixed, "a")
    with pytest.raises(InvalidRequestError, match="another one still does the other part"):
        ask(DRAIN, mixed, "a", must_split=True)


def test_a_wrong_argument_is_refused_before_anybody_is_asked() -> None:
    with pytest.raises(InvalidRequestError, match="role is 'x'; allowed: prefill, decode, mixed"):
        ask(SET_ROLE, workers(PAIR), "p", role="x", force=True)
