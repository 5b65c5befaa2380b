"""Refuses a change of roles that would leave a half of all requests without a worker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import ControlAction
from baton_core.sessions.status_arguments import DrainArgument, SetRoleArgument, read_argument, read_role
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad


def require_served(
    action: ControlAction,
    argument_json: str,
    worker_ids: Collection[str],
    workers: Sequence[tuple[WorkerInfo, WorkerLoad]],
    *,
    must_split: bool = False,
) -> None:
    """Check the roles that `set_role` or `drain` would leave; other and forced actions pass.

    A half that no worker serves before the change needs none after it. With `must_split` a request needs two
    workers.

    Raises:
        InvalidRequestError: the argument is wrong, or nobody would be left who does what somebody does now.
    """
    changes = _changes(action, argument_json)
    if not changes:
        return
    before = {info.worker_id: replace(load, role=load.role or info.role) for info, load in workers}
    after = [replace(load, **changes) if name in worker_ids else load for name, load in before.items()]
    lost = sorted(_abilities(before.values(), must_split) - _abilities(after, must_split))
    if lost:
        allowed = f"workers without whom another one still {' and '.join(lost)}, or any with force"
        raise InvalidRequestError("worker_ids", sorted(worker_ids), allowed)


def _changes(action: ControlAction, argument_json: str) -> dict[str, Any]:
    """Return the fields of the load that the action sets; empty if it always passes."""
    match action:
        case ControlAction.SET_ROLE:
            argument = read_argument(argument_json, SetRoleArgument)
            role = read_role(argument)
            return {} if argument.force else {"role": role}
        case ControlAction.DRAIN:
            return {} if read_argument(argument_json, DrainArgument).force else {"is_draining": True}
        case _:
            return {}


def _abilities(loads: Iterable[WorkerLoad], must_split: bool) -> set[str]:
    roles = [load.role or Role.MIXED for load in loads if load.is_taking]
    can_prefill, can_decode = any(role.can_prefill for role in roles), any(role.can_decode for role in roles)
    abilities = {"prefills": can_prefill, "decodes": can_decode}
    if must_split:
        abilities["does the other part"] = can_prefill and can_decode and len(roles) > 1
    return {name for name, is_had in abilities.items() if is_had}
