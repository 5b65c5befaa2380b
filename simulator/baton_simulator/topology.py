"""The numbers of routers and workers in a simulated cluster, as text and as names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_core.sessions.worker_info import Role

_PART: Final = re.compile(r"([1-9][0-9]?)([pdmr])")
_ROLES: Final = {"p": Role.PREFILL, "d": Role.DECODE, "m": Role.MIXED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`2p2d1r` is two prefill workers, two decode workers and a router; a router need not be named."""

    text: str
    routers: tuple[str, ...]
    workers: tuple[tuple[str, Role], ...]

    @property
    def has_parts(self) -> bool:
        """True if prefill and decode have workers of their own."""
        roles = {role for _, role in self.workers}
        return Role.PREFILL in roles and Role.DECODE in roles


def parse_topology(text: str) -> Topology:
    """Read counts of prefill, decode and mixed workers and of routers.

    Raises:
        InvalidConfigError: the text is no such list, or a part of a request would have no worker.
    """
    parts = {letter: int(count) for count, letter in _PART.findall(text)}
    workers = tuple(
        (f"{letter}{number}", _ROLES[letter])
        for letter in "pdm"
        for number in range(1, parts.get(letter, 0) + 1)
    )
    is_served = any(role.can_prefill for _, role in workers) and any(role.can_decode for _, role in workers)
    if not re.fullmatch(f"({_PART.pattern})+", text) or not is_served:
        raise InvalidConfigError(
            f"topology is {text!r}; allowed: counts of p, d, m and r, such as 2p2d or 1p1d1m2r, "
            "with a worker for prefill and one for decode"
        )
    routers = tuple(f"r{number}" for number in range(1, parts.get("r", 1) + 1))
    return Topology(text=text, routers=routers, workers=workers)
