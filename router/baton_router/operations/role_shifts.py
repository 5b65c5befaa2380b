"""Sends workers the roles that the router's core gives them, as an operator would."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from baton_core.errors import BatonError
from baton_core.sessions.control_messages import ControlAction
from baton_core.sessions.status_arguments import SetRoleArgument
from baton_router.core.router_events import SetRole
from baton_router.operations.operations import Operations, read_results

_log = logging.getLogger(__name__)


class RoleShifts:
    """Role changes of one router that workers have not answered yet, on its loop."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._open: set[asyncio.Task[None]] = set()

    def begin(self, shift: SetRole) -> None:
        """Send the role to the worker, without waiting."""
        task = asyncio.get_running_loop().create_task(self._set_role(shift))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def close(self) -> None:
        """Cancel all waits for workers."""
        for task in self._open:
            task.cancel()

    async def _set_role(self, shift: SetRole) -> None:
        argument = msgspec.json.encode(SetRoleArgument(role=shift.role, is_fixed=False)).decode()
        try:
            read_results(
                await self._operations.control(
                    ControlAction.SET_ROLE, argument, worker_ids=(shift.worker_id,)
                )
            )
        except BatonError as error:
            _log.warning("worker %s does not become %s: %s", shift.worker_id, shift.role, error)
        else:
            _log.info("worker %s is now %s: %s", shift.worker_id, shift.role, shift.reason)
