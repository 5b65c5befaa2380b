"""The argument of `reset_prefix_cache`, as router and worker both read it."""

from __future__ import annotations

import msgspec

from baton_core.sessions.status_arguments import read_argument


class ResetArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The argument of `reset_prefix_cache`."""

    reset_running_requests: bool = False
    """Running requests lose their blocks too, and compute their tokens again."""


def resets_running_requests(argument_json: str) -> bool:
    """Return whether a reset takes the blocks of running requests too.

    Raises:
        InvalidRequestError: the argument is wrong.
    """
    return read_argument(argument_json, ResetArgument).reset_running_requests
