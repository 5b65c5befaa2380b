"""The role of a worker now, and whether it takes requests: changed at once, whatever it computes."""

from __future__ import annotations

from typing import Final

from baton_core.errors import ErrorCode, RequestError
from baton_core.sessions.control_messages import Control, ControlAction
from baton_core.sessions.status_arguments import (
    DrainArgument,
    SetRoleArgument,
    UndrainArgument,
    read_argument,
    read_role,
)
from baton_core.sessions.worker_info import Role

LEAVING: Final = "the worker is leaving"


class WorkerStatus:
    """The status of one worker. A role is a preference that routers heed: the worker does any request."""

    def __init__(self) -> None:
        self.role: Role | None = None
        """None is what it registered with."""
        self.is_role_fixed = False
        """True if an operator gave it: routers leave it alone."""
        self.is_draining = False
        self.damage = ""
        """A disagreement that was found in its books, in one line: it takes no requests until it is started
        again."""
        self.failing = ""
        """The failure for which it takes no requests for a while, in one line: its steps fail."""
        self._is_leaving = False

    @property
    def fault(self) -> str:
        """The fault for which it takes no requests, in one line; empty if there is none."""
        return self.damage or self.failing

    def begin_shutdown(self) -> None:
        """Drain, and never take requests again."""
        self.is_draining = self._is_leaving = True

    def require_accepting(self) -> None:
        """Refuse a request.

        Raises:
            RequestError: UNAVAILABLE, the worker drains, or is faulty.
        """
        if self.fault:
            raise RequestError(ErrorCode.UNAVAILABLE, f"the worker is faulty: {self.fault}")
        if self.is_draining:
            raise RequestError(ErrorCode.UNAVAILABLE, "the worker drains")

    def change(self, control: Control) -> None:
        """Do what `set_role`, `drain` or `undrain` asks.

        Raises:
            InvalidRequestError: the argument is wrong.
            RequestError: UNAVAILABLE, a router asks for a role, but an operator has given one; or the worker,
                which is to take requests again, is about to end.
        """
        match control.action:
            case ControlAction.DRAIN:
                read_argument(control.argument_json, DrainArgument)
                self.is_draining = True
            case ControlAction.UNDRAIN:
                read_argument(control.argument_json, UndrainArgument)
                if self._is_leaving:
                    raise RequestError(ErrorCode.UNAVAILABLE, LEAVING)
                self.is_draining = False
            case ControlAction.SET_ROLE:
                self._set_role(read_argument(control.argument_json, SetRoleArgument))
            case _:
                raise AssertionError(f"{control.action} changes no status")

    def _set_role(self, argument: SetRoleArgument) -> None:
        role = read_role(argument)
        if self.is_role_fixed and not argument.is_fixed:
            raise RequestError(ErrorCode.UNAVAILABLE, f"an operator has made this a {self.role} worker")
        self.role, self.is_role_fixed = role, argument.is_fixed
