"""Flags of vLLM's that change nothing here: taken out of command lines and configuration files.

Those that ask for what there is not are refused by name, with the reason.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from baton.commands.vllm_server_flags import SERVER_FIXED, TAKEN, Taken
from baton.config.fixed_engine_args import (
    FIELD_OF,
    FIXED,
    LIST_FLAGS,
    SWITCHES,
    Fixed,
    is_switch,
    literal,
)
from baton.config.ignored_engine_args import IGNORED

_NEGATIVE: Final = re.compile(r"-\d")
ENGINE_FIXED: Final[dict[str, Fixed]] = {
    flag: FIXED[name] for flag, name in FIELD_OF.items() if name in FIXED
}
ENGINE_TAKEN: Final[dict[str, Taken]] = {
    flag: Taken(IGNORED[name].reason, is_switch=is_switch(flag))
    for flag, name in FIELD_OF.items()
    if name in IGNORED
}
_TOKENIZER: Final[dict[str, Fixed | Taken]] = {
    "--tokenizer-mode": ENGINE_FIXED["--tokenizer-mode"],
    "--trust-remote-code": ENGINE_TAKEN["--trust-remote-code"],
}


class NeutralFlags:
    """The flags of this kind that one command knows, and those that it was given."""

    def __init__(self, known: Mapping[str, Fixed | Taken]) -> None:
        self.known = known
        self.given: list[str] = []
        """Names of the flags that were taken."""

    def take(self, argv: Sequence[str]) -> list[str]:
        """Return the arguments without such flags.

        Raises:
            InvalidConfigError: naming the flag, its value, what is allowed and why.
        """
        rest: list[str] = []
        waiting = deque(argv)
        while waiting:
            argument = waiting.popleft()
            name, equals, text = argument.partition("=")
            flag = self._find(name)
            if flag is None:
                rest.append(argument)
                continue
            value: Any = literal(text) if equals else flag == name
            if not equals and not _is_switch(flag, self.known[flag]) and waiting and not _is_flag(waiting[0]):
                value = literal(waiting.popleft())
            while flag in LIST_FLAGS and not equals and waiting and not _is_flag(waiting[0]):
                waiting.popleft()
            self._take(flag, value, name)
        return rest

    def take_key(self, key: str, value: object, where: str) -> bool:
        """Take the value of a configuration file's key; False where it is none of these flags.

        Raises:
            InvalidConfigError: it asks for what there is not; the message names `where`.
        """
        flag = self._find(f"--{key}")
        if flag is None:
            return False
        value = literal(value) if isinstance(value, str) else value
        self._take(flag, value if flag == f"--{key}" else not value, where)
        return True

    def _find(self, name: str) -> str | None:
        """The flag that an argument means: a switch is also turned off."""
        if name in self.known:
            return name
        opposite = name.replace("--no-", "--", 1)
        return opposite if opposite in self.known else None

    def _take(self, flag: str, value: object, shown_name: str) -> None:
        match self.known[flag]:
            case Fixed() as fixed if value is not False or _has_switch_values(fixed):
                fixed.check(value, shown_name)
            case _:
                pass  # what is not there may be turned off
        self.given.append(flag)


def neutral_flags(*, has_engine: bool, has_router: bool, has_tokenizer: bool = False) -> NeutralFlags:
    """The flags of a command that computes, that serves HTTP, or both, or one that has a tokenizer alone."""
    engine: Mapping[str, Fixed | Taken] = {**ENGINE_FIXED, **ENGINE_TAKEN} if has_engine else {}
    server: Mapping[str, Fixed | Taken] = {**SERVER_FIXED, **TAKEN} if has_router else {}
    tokenizer: Mapping[str, Fixed | Taken] = _TOKENIZER if has_tokenizer else {}
    return NeutralFlags({**engine, **server, **tokenizer})


def _is_switch(name: str, flag: Fixed | Taken) -> bool:
    if isinstance(flag, Taken):
        return flag.is_switch
    return _has_switch_values(flag) or name.startswith(SWITCHES)


def _has_switch_values(flag: Fixed) -> bool:
    return any(isinstance(value, bool) for value in flag.allowed)


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and _NEGATIVE.match(argument) is None
