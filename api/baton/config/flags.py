"""One flag of the `baton` command, given on the command line or in a configuration file."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Final

from baton.processes.secret_flags import SECRET_FLAGS
from baton_core.errors import InvalidConfigError

_MAX_SHOWN: Final = 80
_MAX_DECIMAL_BITS: Final = 4096
"""Bits of the largest integer; Python refuses to write much longer ones in decimal."""
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that no process can be given, and those that Python makes of bytes that are no UTF-8."""
_READERS: Final[dict[type, Callable[[str], Any]]] = {int: int, float: float, dict: json.loads}
_KINDS: Final = {
    int: "an integer",
    float: "a finite number",
    str: "text in UTF-8 without null characters",
    bool: "true or false",
    dict: "a JSON object",
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """The syntax of a text, as a pattern and in words, and what help calls such a text."""

    pattern: str
    words: str
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`; where it `is_low_open`, over `low`."""

    low: float
    high: float = math.inf
    is_low_open: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.is_low_open and value == self.low)

    @property
    def words(self) -> str:
        high = "" if self.high == math.inf else f" to {self.high}"
        return f" {'over' if self.is_low_open else 'from'} {self.low}{high}"


MAX_INT: Final = 2**31 - 1
POSITIVE: Final = Range(1, MAX_INT)
NATURAL: Final = Range(0, MAX_INT)
OVER_0: Final = Range(0, 10**9, is_low_open=True)
SHARE_OVER_0: Final = Range(0, 1, is_low_open=True)


_PORT: Final = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ADDRESS: Final = Pattern(
    rf"([^\s:]+|\[[^\s\]]+\]):{_PORT}", "host:port with a port from 1 to 65535", "HOST:PORT"
)
ENDPOINT: Final = Pattern(
    rf"tcp://([^\s:*]+|\[[^\s\]]+\]):{_PORT}|(ipc|inproc)://.+", "tcp://host:port, or ipc:// and a path"
)
MODEL: Final = Pattern(r"(?!-)(?!.*[^/]{256})[^\x00-\x1f\x7f]{1,4000}", "a folder or a Hugging Face id")
LAYER_COUNTS: Final = Pattern(r"[1-9][0-9]{0,4}(,[1-9][0-9]{0,4})*", "numbers above 0, as 3,5")
NAME: Final = Pattern(r"[^\x00-\x1f\x7f]{1,128}", "1 to 128 printable characters")
IMPORTABLE: Final = Pattern(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*", "package.module.Name", "NAME")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, or the positional MODEL. A default of None leaves the choice to the process.

    `kind` is int, float, str, dict for a JSON object, or bool for a switch, which is turned off by `--no-`.
    A flag of `is_list` may be repeated; with `nargs` "+" it also takes several values at once, and with
    `takes_json` a JSON list of them. With `suffixes` an integer may have a unit. Values of `unset` stand for
    the default of None.
    """

    name: str
    kind: type
    default: object
    help: str
    values: tuple[str, ...] | Pattern | Range | None = None
    """The allowed texts or numbers; None: all of its kind."""
    _: KW_ONLY
    is_list: bool = False
    takes_json: bool = False
    unset: tuple[str | int, ...] = ()
    suffixes: Suffixes | None = None
    nargs: str | None = None
    metavar: str | None = None
    reason: str = ""
    """Why there are no other values."""

    @property
    def field(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if isinstance(self.values, tuple):
            return ", ".join(self.values) + (f" ({self.reason})" if self.reason else "")
        if isinstance(self.values, Pattern):
            return self.values.words
        within = self.values.words if self.values else ""
        unit = f", or as {self.suffixes.words}" if self.suffixes else ""
        return _KINDS[self.kind] + within + unit + "".join(f", or {word}" for word in self.unset)

    def parse(self, text: str, name: str = "") -> Any:
        """Read one value of the command line; of a JSON list, all of its values.

        `name` is what an error calls it, by default the flag's.

        Raises:
            InvalidConfigError: naming the flag, value and what is allowed.
        """
        value: object = text
        name = name or self.name
        if text in map(str, self.unset):
            return None
        if self.takes_json and text.startswith("["):
            return self._parse_list(text, name)
        if self.kind in _READERS and self._with_unit(text) is None:
            try:
                value = _READERS[self.kind](text)
            except (ValueError, RecursionError):
                raise self._refusal(name, text) from None
        return self.check(value, name)

    def check(self, value: object, name: str) -> Any:
        """Return one value if it is of the right kind and in range; `name` is what an error calls it.

        Raises:
            InvalidConfigError: naming `name`, value and what is allowed.
        """
        given = value
        if value in self.unset:
            return None
        if (number := self._with_unit(value)) is not None:
            value = number
        if self.kind is float and type(value) is int:
            value = float(value) if abs(value) < 2**53 else math.inf
        if type(value) is not self.kind or not self._is_allowed(value):
            raise self._refusal(name, given)
        return value

    def add_to(self, parser: argparse._ActionsContainer, *, is_own: bool = True) -> None:
        """Mutate a parser, or a group of one: add the flag.

        A parser of Baton's own is read by `read_arguments`; another one has a usage error on a wrong value.
        """
        text = self.help.replace("%", "%%")
        if self.suffixes:
            text += f"; may have a unit, as {self.suffixes.words}"
        if self.kind is bool:
            parser.add_argument(self.name, action="store_true", default=self.default, help=text)
            is_off = self.default is False
            off = argparse.SUPPRESS if is_off else f"turn {self.name} off"
            parser.add_argument(self.opposite, dest=self.field, action="store_false", help=off)
            return
        is_published = "default" in self.help or self.default in (None, "", ())
        shown = "" if is_published else f" (default {self.default})"
        metavar = self.values.metavar if isinstance(self.values, Pattern) else None
        if isinstance(self.values, tuple):
            metavar = f"{{{','.join(self.values)}}}"
        parse = self._parse_own if is_own else self._parse_argument
        options: dict[str, Any] = {"type": parse, "default": self.default, "metavar": self.metavar or metavar}
        if self.is_list:
            options["action"] = _Collect
        parser.add_argument(self.name, nargs=self.nargs, help=text + shown, **options)

    def given(self, value: Any) -> tuple[str, ...]:
        """Arguments that give this value to another command."""
        if self.kind is bool:
            is_given = value is not None and value is not self.default
            return ((self.name if value else self.opposite),) if is_given else ()
        if self.kind is dict:
            return () if value is None else (f"{self.name}={json.dumps(value)}",)
        values = value if self.is_list else () if value is None else (value,)
        return tuple(f"{self.name}={each}" for each in values)

    @property
    def opposite(self) -> str:
        """The flag that turns a switch off."""
        return self.name.replace("--", "--no-", 1)

    def _parse_own(self, text: str) -> Any:
        try:
            return self.parse(text)
        except InvalidConfigError as error:
            raise _RefusedValue(error) from None

    def _parse_argument(self, text: str) -> Any:
        try:
            return self.parse(text)
        except InvalidConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    def _parse_list(self, text: str, name: str) -> tuple[Any, ...]:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise self._refusal(name, text) from None
        return tuple(self.check(value, name) for value in values)

    def _with_unit(self, value: object) -> int | float | None:
        return self.suffixes.read(value) if self.suffixes and isinstance(value, str) else None

    def _is_allowed(self, value: Any) -> bool:
        if isinstance(value, str) and _UNUSABLE.search(value):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        match self.values:
            case None:
                return True
            case Pattern(pattern):
                return re.fullmatch(pattern, value) is not None
            case allowed:
                return value in allowed

    def _refusal(self, name: str, value: object) -> InvalidConfigError:
        is_secret = self.name in SECRET_FLAGS and value
        text = "a value that is not shown" if is_secret else shown(value)
        return InvalidConfigError(f"{name} is {text}; allowed: {self.allowed}")


def shown(value: object) -> str:
    """A value as errors show it: ASCII of bounded length, whatever its size."""
    match value:
        case list() | dict() | set():
            return f"a {type(value).__name__}"
        case int() if value.bit_length() > _MAX_DECIMAL_BITS:
            text = hex(value)
        case _:
            text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the nearest of the known names; empty where none is near."""
    near = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


class _RefusedValue(Exception):  # noqa: N818  # it only carries an error
    """Carries the error of a value through argparse, which has words of its own for a ValueError."""

    def __init__(self, error: InvalidConfigError) -> None:
        super().__init__(error)
        self.error = error


def read_arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Return what a parser of own flags reads, and the arguments that it does not know.

    Raises:
        InvalidConfigError: a value is not allowed; the message has its flag and what is allowed.
        SystemExit: help was asked for, or the line is no command.
    """
    try:
        return parser.parse_known_args(argv)
    except _RefusedValue as refused:
        raise refused.error from None


class _Collect(argparse.Action):
    """Gathers the values of a repeated flag; those of the command line take the place of the default's."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        added = tuple(values or ()) if isinstance(values, list | tuple) else (values,)
        setattr(namespace, self.dest, added if before is self.default else (*before, *added))


_NUMBER: Final = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"
_COUNT: Final = re.compile(rf"{_NUMBER}([kKmMgGtT])()")
_BYTES: Final = re.compile(rf"{_NUMBER} ?(?=[a-zA-Z])([kKmMgGtT]?)((?<=[a-zA-Z])iB?|B|)")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Suffixes:
    """Units that a flag takes."""

    words: str
    """Examples, for errors."""
    pattern: re.Pattern[str]
    rounds_down: bool = False
    """A part of a whole number is left out; otherwise the number stays a fraction, which no integer is."""

    def read(self, text: str) -> int | float | None:
        """The number that a text with a unit means; None for a text without one."""
        match = self.pattern.fullmatch(text)
        if match is None:
            return None
        digits, prefix, unit = match.groups()
        is_binary = unit.startswith("i") or (unit == "" and prefix.isupper())
        number = Fraction(digits) * (1024 if is_binary else 1000) ** _POWERS[prefix.lower()]
        return int(number) if self.rounds_down or number.denominator == 1 else float(number)


COUNT: Final = Suffixes("16k or 16K", _COUNT)
BYTES: Final = Suffixes("500M, 1.5GiB or 2GB", _BYTES, rounds_down=True)
