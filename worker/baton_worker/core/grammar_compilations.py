"""Requests that wait until the grammar of their structured output is compiled."""

from __future__ import annotations

from collections.abc import Iterable

from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.worker.worker_events import CompileGrammar


class GrammarCompilations:
    """The pending compilations of one worker. Each has a number, so late answers are dropped."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._numbers: dict[str, int] = {}
        """Number of the compilation that each request waits for."""
        self._pending: dict[int, tuple[str, float, str]] = {}
        """By number, in the order of their deadlines: the request, the deadline, the field."""
        self._num_begun = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._numbers

    def begin(
        self, now: float, request_id: str, structured_outputs: StructuredOutputsParams, tenant: str = ""
    ) -> CompileGrammar:
        """Ask for a grammar; the request waits for it."""
        self._num_begun += 1
        self._numbers[request_id] = self._num_begun
        self._pending[self._num_begun] = (request_id, now + self._within_s, structured_outputs.kind)
        return CompileGrammar(
            compilation_id=self._num_begun, structured_outputs=structured_outputs, tenant=tenant
        )

    def end(self, compilation_id: int) -> str | None:
        """The request that need not wait any longer; None if nobody waits for this."""
        if compilation_id not in self._pending:
            return None
        request_id, _, _ = self._pending.pop(compilation_id)
        del self._numbers[request_id]
        return request_id

    def drop(self, request_id: str) -> None:
        """The request is over."""
        if (number := self._numbers.pop(request_id, None)) is not None:
            del self._pending[number]

    def next_deadline(self) -> float | None:
        return next((deadline for _, deadline, _ in self._pending.values()), None)

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """Requests that waited too long, each with what for; they wait until they are dropped."""
        return [
            (request_id, f"waited {self._within_s:g} s for structured_outputs.{field} to be compiled")
            for request_id, deadline, field in self._pending.values()
            if deadline <= now
        ]

    def check_invariants(self, request_ids: Iterable[str]) -> None:
        """Raise AssertionError when somebody waits who is none of these, or waits for nothing."""
        assert {request_id for request_id, _, _ in self._pending.values()} == set(self._numbers)
        assert set(self._numbers) <= set(request_ids), "a request that is over waits for its grammar"
