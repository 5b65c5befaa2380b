"""The argument of `pin_adapters`, as router and worker both read it."""

from __future__ import annotations

import msgspec

from baton_core.sessions.status_arguments import read_argument


class PinAdaptersArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The argument of `pin_adapters`."""

    numbers: frozenset[int]
    """Numbers of the adapters that stay loaded, in the place of those that did before."""


def read_pinned(argument_json: str) -> frozenset[int]:
    """Return the numbers of the adapters that are to stay loaded.

    Raises:
        InvalidRequestError: the argument is wrong.
    """
    return read_argument(argument_json, PinAdaptersArgument).numbers
