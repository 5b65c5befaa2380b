"""The records of a router's open requests and of the latest that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from baton_core.requests.attempt_names import name_at_client
from baton_core.requests.phases import Phase, PhaseReport
from baton_router.core.flow.request_record import RequestRecord, WorkerPart

MAX_ENDED: Final = 4096
"""Maximum number of records of ended requests; those that ended first are forgotten first."""


class RequestLog:
    """Records by the client's request id; a reused id has only its last record."""

    def __init__(self, max_ended: int = MAX_ENDED) -> None:
        self._records: dict[str, RequestRecord] = {}
        self._ended: deque[RequestRecord] = deque()
        self._max_ended = max_ended

    def open(self, record: RequestRecord) -> None:
        """Add a record; its attempts continue the count of the last request of its name."""
        if (earlier := self._records.pop(record.request_id, None)) is not None:
            record.num_attempts = earlier.num_attempts
        self._records[record.request_id] = record

    def close(self, request_id: str) -> None:
        """Let a record that has ended be forgotten in its turn; those of open requests are kept."""
        self._ended.append(self._records[request_id])
        while len(self._ended) > self._max_ended:
            oldest = self._ended.popleft()
            if self._records.get(oldest.request_id) is oldest:
                del self._records[oldest.request_id]

    def get(self, request_id: str) -> RequestRecord | None:
        return self._records.get(request_id)

    def recent(self) -> Iterator[RequestRecord]:
        """Return the records, the latest first."""
        return reversed(self._records.values())

    def add_report(self, now: float, worker_id: str, report: PhaseReport) -> None:
        """Add a worker's report, with its times shifted onto the clock of `now`, the time of its arrival."""
        record = self._records.get(name_at_client(report.request_id))
        if record is not None:
            shift_s = now - report.sent_s
            record.parts.append(
                WorkerPart(
                    worker_id=worker_id,
                    attempt_id=report.request_id,
                    phases=tuple(_shifted(phase, shift_s) for phase in report.phases),
                    sources=report.sources,
                    num_left_out=report.num_left_out,
                )
            )


def _shifted(phase: Phase, shift_s: float) -> Phase:
    return replace(phase, start_s=phase.start_s + shift_s, end_s=phase.end_s + shift_s)
