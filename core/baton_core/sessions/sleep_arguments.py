"""Arguments of `sleep` and `wake_up`, as router and worker both read them."""

from __future__ import annotations

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import SLEEP_LEVELS, EnginePart
from baton_core.sessions.status_arguments import read_argument


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
