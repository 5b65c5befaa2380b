"""Runs tasks in bounded processes; their refusals and their ends become errors of the request."""

from __future__ import annotations

import json
from typing import Final, NoReturn

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_sandbox.bounded_processes import (
    BoundedProcesses,
    ProcessesUnavailableError,
    TaskEndedError,
    TaskFailedError,
)
from baton_sandbox.process_limits import ProcessLimits

_ANSWER: Final = b"a"
_REFUSAL: Final = b"r"


def encode_answer(content: bytes) -> bytes:
    """Return the reply of a task that succeeded."""
    return _ANSWER + content


def encode_refusal(error: InvalidRequestError) -> bytes:
    """Return the reply of a task whose request is refused."""
    return _REFUSAL + json.dumps((error.field, error.shown, error.allowed)).encode()


def run_bounded(
    processes: BoundedProcesses,
    task: bytes,
    limits: ProcessLimits,
    what: str,
    refused: tuple[str, str, str] | None = None,
) -> bytes:
    """Run a task in a process and return its reply.

    Args:
        what: names the work in errors.
        refused: field, value and what is allowed, for the error of a task that exceeds `limits`; without them
            the reply is empty then.

    Raises:
        InvalidRequestError: the request is refused.
        RequestError: DEADLINE_EXCEEDED, the machine is busy; UNAVAILABLE, it shuts down; INTERNAL.
    """
    try:
        answer = processes.run(task, limits)
    except TaskEndedError as error:
        if refused is None:
            return b""
        if error.is_overdue:
            text = f"{what}: not done within {limits.wall_s:g} s"
            raise RequestError(ErrorCode.DEADLINE_EXCEEDED, text) from None
        field, value, allowed = refused
        raise InvalidRequestError(field, value, f"{allowed} within {limits}") from None
    except TaskFailedError as error:
        raise RequestError(ErrorCode.INTERNAL, f"{what}: {error}") from None
    except ProcessesUnavailableError as error:
        raise RequestError(ErrorCode.UNAVAILABLE, f"{what}: {error}") from None
    if answer[:1] == _REFUSAL:
        _raise(answer[1:])
    return answer[1:]


def _raise(answer: bytes) -> NoReturn:
    field, shown, allowed = json.loads(answer)
    raise InvalidRequestError(field, _Shown(shown), allowed)


class _Shown:
    """A value as an error shows it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
