"""Calls that broke off, and their spending: a client that resumes one is not charged for it again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_RESUMPTIONS: Final = 4
"""Number of times that a call is resumed for nothing: workers compute its prompt each time."""
_MAX_CALLS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The part of its tenant's rate limits that a call has used before it is submitted."""

    num_requests: int = 0
    num_tokens: int = 0
    num_resumptions: int = 0


_NOTHING: Final = Spent()


class BrokenCalls:
    """Knows calls by their tenants and names; the ones that broke first are forgotten first."""

    def __init__(self, max_calls: int = _MAX_CALLS) -> None:
        self._max_calls = max_calls
        self._spent: OrderedDict[tuple[str, str], Spent] = OrderedDict()

    def spent(self, tenant: str, call: str) -> Spent:
        """Return what a call has spent; nothing where it is new, or was resumed too often."""
        return self._spent.get((tenant, call), _NOTHING)

    def resume(self, tenant: str, call: str) -> Spent:
        """Return the same, and forget it until the call breaks again."""
        return self._spent.pop((tenant, call), _NOTHING)

    def add(self, tenant: str, call: str, before: Spent, num_tokens: int) -> None:
        """Note the tokens of a call that broke, and what it had spent before; one without a name is over."""
        num_resumptions = before.num_resumptions + bool(before.num_requests)
        if not call or num_resumptions >= MAX_RESUMPTIONS:
            return
        self._spent[tenant, call] = Spent(
            num_requests=1, num_tokens=num_tokens, num_resumptions=num_resumptions
        )
        if len(self._spent) > self._max_calls:
            self._spent.popitem(last=False)
