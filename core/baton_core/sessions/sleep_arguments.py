"""Arguments of `sleep` and `wake_up`, as router and worker both read them."""

from __future__ import annotations

from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import SLEEP_LEVELS, EnginePart
from baton_core.sessions.status_arguments import read_argument

SLEEP_MODES: Final = ("abort", "wait", "keep")
"""The ways to treat open requests."""


class SleepArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The argument of `sleep`."""

    level: int = 1


class WakeUpArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The argument of `wake_up`."""

    tags: tuple[str, ...] = ()


def read_sleep_level(argument_json: str) -> int:
    """Return the level of a sleep.

    Raises:
        InvalidRequestError: the argument is wrong, or there is no such level.
    """
    level = read_argument(argument_json, SleepArgument).level
    if level not in SLEEP_LEVELS:
        raise InvalidRequestError("level", level, ", ".join(map(str, SLEEP_LEVELS)))
    return level


def check_sleep_mode(level: int, mode: str) -> None:
    """Refuse what cannot become of open requests: without their blocks they cannot be kept.

    Raises:
        InvalidRequestError: naming what can.
    """
    allowed = SLEEP_MODES if level == 0 else SLEEP_MODES[:2]
    if mode in allowed:
        return
    why = " (level 0 keeps requests; the others give up their KV cache)" if mode in SLEEP_MODES else ""
    raise InvalidRequestError("mode", mode, ", ".join(allowed) + why)


def read_wake_up_tags(argument_json: str) -> frozenset[EnginePart]:
    """Return the parts that a wake-up takes back; none means all.

    Raises:
        InvalidRequestError: the argument is wrong, or one of its tags.
    """
    tags = read_argument(argument_json, WakeUpArgument).tags
    for tag in tags:
        if tag not in tuple(EnginePart):
            raise InvalidRequestError("tags", tag, ", ".join(EnginePart))
    return frozenset(map(EnginePart, tags))
