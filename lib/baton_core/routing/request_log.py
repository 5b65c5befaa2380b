"""What a router remembers of its requests, open ones and those that ended last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from baton_core.requests.phases import Phase, PhaseReport
from baton_core.routing.request_record import RequestRecord, WorkerPart

MAX_RECORDS: Final = 4096
"""Of open and ended requests together; the oldest are forgotten first."""
ATTEMPT_MARK: Final = "\t"
"""Between a request's name and what its router adds for the workers; no client's name contains it."""


def name_at_client(attempt_id: str) -> str:
    """The client's name of a request, from the name that its workers use."""
    return attempt_id.partition(ATTEMPT_MARK)[0]


def attempt_name(request_id: str, router_name: str, number: int) -> str:
    """The name that workers use: another one for each attempt, and for each router that they serve."""
    mark = ".".join(part for part in (router_name, str(number) if number else "") if part)
    return f"{request_id}{ATTEMPT_MARK}{mark}" if mark else request_id


class RequestLog:
    """Records by the client's name of the request; a name that is used again has its last one."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()
        self._max_records = max_records

    def open(self, record: RequestRecord) -> None:
        """Remember a request from here on; its attempts are counted on from the last one of its name."""
        if (earlier := self._records.pop(record.request_id, None)) is not None:
            record.num_attempts = earlier.num_attempts
        self._records[record.request_id] = record
        while len(self._records) > self._max_records:
            self._records.popitem(last=False)

    def get(self, request_id: str) -> RequestRecord | None:
        return self._records.get(request_id)

    def recent(self) -> Iterator[RequestRecord]:
        """The one that came last first."""
        return reversed(self._records.values())

    def add_report(self, now: float, worker_id: str, report: PhaseReport) -> None:
        """Add what a worker did, with its times shifted onto the clock of `now`, when the report came."""
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
    return Phase(
        name=phase.name,
        start_s=phase.start_s + shift_s,
        end_s=phase.end_s + shift_s,
        num_tokens=phase.num_tokens,
        num_bytes=phase.num_bytes,
        peer=phase.peer,
    )
