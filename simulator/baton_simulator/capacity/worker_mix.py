"""How many workers of each role a fleet has, in which racks they stand, and which are lost at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baton_core.errors import require
from baton_core.sessions.worker_info import Role

MAX_WORKERS: Final = 1000
ROLES: Final = {"P": Role.PREFILL, "D": Role.DECODE, "M": Role.MIXED}
"""Roles by letter."""
_FORM: Final = "counts with P, D and M such as 64P:64D or 8M"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMix:
    """A fleet's workers by role.

    Raises:
        InvalidConfigError: there are too many, or nobody prefills or decodes.
    """

    prefill: int = 0
    decode: int = 0
    mixed: int = 0

    def __post_init__(self) -> None:
        require("workers", str(self), self.total <= MAX_WORKERS, f"{MAX_WORKERS} workers at most")
        has_both = bool(self.prefill + self.mixed and self.decode + self.mixed)
        require("workers", str(self), has_both, "at least one that prefills and one that decodes")

    @property
    def total(self) -> int:
        return self.prefill + self.decode + self.mixed

    def names(self) -> dict[str, Role]:
        """The workers in order: `P0`, `P1`, …, `D0`, …, `M0`, …"""
        counts = zip("PDM", (self.prefill, self.decode, self.mixed), strict=True)
        return {f"{letter}{number}": ROLES[letter] for letter, count in counts for number in range(count)}

    def __str__(self) -> str:
        counts = zip("PDM", (self.prefill, self.decode, self.mixed), strict=True)
        return ":".join(f"{count}{letter}" for letter, count in counts if count)


def parse_mix(text: str) -> WorkerMix:
    """Read counts by role.

    Raises:
        InvalidConfigError: they are none, or no fleet.
    """
    counts = _parse_counts(text, "workers", _FORM)
    return WorkerMix(prefill=counts.get("P", 0), decode=counts.get("D", 0), mixed=counts.get("M", 0))


def ratios(total: int, most: int) -> list[WorkerMix]:
    """Up to `most` divisions of so many workers into prefill and decode, evenly apart, and all mixed."""
    step = max(1.0, (total - 2) / max(1, most - 1))
    prefills = sorted({round(1 + step * number) for number in range(most)} & set(range(1, total)))
    return [*(WorkerMix(prefill=one, decode=total - one) for one in prefills), WorkerMix(mixed=total)]


def racks(mix: WorkerMix, count: int) -> dict[str, list[str]]:
    """The workers dealt to `count` racks in turn, so that each has its part of every role; none is empty."""
    groups: dict[str, list[str]] = {f"rack-{number}": [] for number in range(min(count, mix.total))}
    for number, name in enumerate(mix.names()):
        groups[f"rack-{number % count}"].append(name)
    return groups


def lost_workers(text: str, mix: WorkerMix, groups: Mapping[str, list[str]]) -> list[str]:
    """The workers that `text` names: a rack, a share of each role, or counts by role.

    Raises:
        InvalidConfigError: it names none of this fleet.
    """
    if text in groups:
        return groups[text]
    names = list(mix.names())
    if (share := re.fullmatch(r"(\d{1,3})%", text)) and 0 < int(share[1]) <= 100:
        counts = {letter: -(-_count(names, letter) * int(share[1]) // 100) for letter in ROLES}
    else:
        racks_shown = f"rack-0 to rack-{len(groups) - 1}" if groups else "a rack, with --racks"
        counts = _parse_counts(text, "lose", f"{racks_shown}, a share such as 25%, or counts such as 8P:8D")
    for letter, count in counts.items():
        require("lose", text, count <= _count(names, letter), f"workers of {mix}")
    return [name for name in names if int(name[1:]) < counts.get(name[0], 0)]


def _count(names: list[str], letter: str) -> int:
    return sum(name[0] == letter for name in names)


def _parse_counts(text: str, field: str, allowed: str) -> dict[str, int]:
    parts = [re.fullmatch(r"(\d{1,6})([PDM])", part) for part in text.split(":")]
    counts = {part[2]: int(part[1]) for part in parts if part}
    require(field, text, len(counts) == len(parts) and any(counts.values()), allowed)
    return counts
