"""Verdicts on single items of vLLM's documentation, read from what trying an item did."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

Probe = Callable[[], object]
"""Tries one item. Returns evidence, or raises what the item's user would see, or `DifferentError`."""


class Status(StrEnum):
    """The finding of a user of vLLM."""

    WORKS = "works"
    REFUSED = "refused"
    MISSING = "missing"
    DIFFERENT = "different"


class DifferentError(Exception):
    """An item is taken and does something else than vLLM documents; the message says what."""


@dataclass(frozen=True, slots=True)
class Group:
    """Items under one heading of vLLM's documentation, each with its probe."""

    title: str
    items: Mapping[str, Probe]
    starts_processes: bool = False
    """True for probes that take longer than the others together."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An item's status, and what shows it."""

    group: str
    item: str
    status: Status
    evidence: str = ""


_ADDED_BY_RUNPY: Final = "); '"
"""The end of a module's own words, where `python -m` goes on."""
_WITHOUT_A_WORD: Final = re.compile(
    r"unexpected keyword argument \S+|has no attribute \S+|cannot import name \S+ from \S+( \(\S+\))?|"
    r"No module named \S+|takes .*given|cannot assign to field \S+|missing \d+ required .*|"
    r"unrecognized arguments.*|invalid choice.*"
)
"""Words of Python and argparse on a name that nobody thought of."""
_VALUE: Final = re.compile(r"(\S+: )*\S+ is (?!not\b)")
"""The beginning of an error that names a field and its value."""
_MIN_REASON_WORDS: Final = 4
_MIN_NAME_LETTERS: Final = 4


def judge(group: str, item: str, probe: Probe) -> Verdict:
    """Try an item; what the probe prints is kept from the terminal."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            evidence = probe()
    except DifferentError as error:
        return Verdict(group, item, Status.DIFFERENT, str(error))
    except SystemExit:
        said = printed.getvalue().strip().splitlines()[-1:]
        return Verdict(group, item, status_of_error(item, "".join(said)), "".join(said))
    except Exception as error:
        return Verdict(group, item, status_of_error(item, str(error)), _one_line(error))
    return Verdict(group, item, Status.WORKS, evidence if isinstance(evidence, str) else "")


def status_of_error(item: str, text: str) -> Status:
    """Return REFUSED for an error's text that names the item and says why, else MISSING."""
    names = re.findall(r"\w+", item)
    long_names = [name for name in names if len(name) >= _MIN_NAME_LETTERS] or names
    is_named = any(_squeezed(name) in _squeezed(text) for name in long_names)
    return Status.REFUSED if is_named and _has_reason(text) else Status.MISSING


def reason_of(text: str) -> str:
    """Return the part of an error that says why, or else what is allowed."""
    text = text.partition(_ADDED_BY_RUNPY)[0]
    before, is_there, allowed = text.partition("; allowed: ")
    told = "" if _VALUE.match(before) else before.rpartition(": ")[2]
    if is_there and len(told.split()) < _MIN_REASON_WORDS:
        bracketed = allowed.endswith(")") and "(" in allowed
        return allowed[allowed.index("(") + 1 : -1] if bracketed else allowed.removeprefix("None: ")
    return (told or text.rpartition(": ")[2]).rstrip(")")


def _has_reason(text: str) -> bool:
    """A reason is more than the value, and what else it may be."""
    if plain := _WITHOUT_A_WORD.search(text):
        text = f": {text[plain.end() :]}"
    return len(re.findall(r"[\w-]+", reason_of(text))) >= _MIN_REASON_WORDS


def _squeezed(text: str) -> str:
    return text.replace("-", "").replace("_", "").lower()


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
