"""Checks grammars in processes that end when a check exceeds its limits.

llguidance bounds the size of what it makes of a schema, not the time: 250 patterns of keys take minutes. The
tokenizing threads wait for the processes, so long checks are left to the worker, where tenants take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.structured_outputs.grammar_checks import check_structured_outputs
from baton_router.text.refusals import encode_answer, encode_refusal, run_bounded
from baton_sandbox.bounded_processes import BoundedProcesses
from baton_sandbox.process_limits import ProcessLimits

LIMITS: Final = ProcessLimits(cpu_s=0.2, wall_s=20.0, memory_bytes=768 << 20, niceness=5, num_tasks=1000)
_CHEAP: Final = ("choice", "json_object")
"""Kinds that are checked by counting."""


def is_checked_by_counting(params: StructuredOutputsParams) -> bool:
    """Return whether a check needs no process, as it takes next to no time."""
    return params.kind in _CHEAP


class BoundedGrammarChecks:
    """Checks for one router. All methods are safe to call from any thread."""

    def __init__(self, limits: ProcessLimits = LIMITS) -> None:
        self._limits = limits
        self._processes = BoundedProcesses(
            "baton_router.structured_outputs.bounded_checks:prepare_checks", {}
        )

    def check(self, params: StructuredOutputsParams) -> None:
        """Refuse a grammar that no worker could compile, unless the check takes too long.

        Raises:
            InvalidRequestError: naming the field and what is wrong with it.
            RequestError: UNAVAILABLE, it shuts down; INTERNAL.
        """
        if is_checked_by_counting(params):
            check_structured_outputs(params)
            return
        try:
            task = msgspec.json.encode(params)
        except UnicodeEncodeError:  # half a surrogate pair, which is refused before anything is costly
            check_structured_outputs(params)
            raise
        what = f"structured_outputs.{params.kind} cannot be checked"
        run_bounded(self._processes, task, self._limits, what)

    def close(self) -> None:
        """End the processes; what they check fails."""
        self._processes.close()


def prepare_checks() -> Callable[[bytes], bytes]:
    """Return the function that checks a grammar. Called in the fork server."""
    check_structured_outputs(StructuredOutputsParams(regex="a"))  # loads the library

    def work(task: bytes) -> bytes:
        try:
            check_structured_outputs(msgspec.json.decode(task, type=StructuredOutputsParams))
        except InvalidRequestError as error:
            return encode_refusal(error)
        return encode_answer(b"")

    return work
