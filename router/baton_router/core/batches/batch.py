"""A batch of `/v1/batches` and the states that it goes through; each batch ends in one terminal state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from baton_router.core.batches.batch_lines import LineError

WINDOW: Final = "24h"
WINDOW_S: Final = 24 * 3600


class BatchStatus(StrEnum):
    """The status of a batch, as OpenAI's clients know it."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class BatchInput(StrEnum):
    """An input of the state machine: what has happened to a batch."""

    VALIDATE = "validate"
    """Its lines are checked, and all are requests."""
    ANSWER = "answer"
    """Each line has a result."""
    CANCEL = "cancel"
    """Its owner ends it."""
    WRITE = "write"
    """Its output is written."""
    EXPIRE = "expire"
    """Its time is over, and what there is of its output is written."""
    FAIL = "fail"
    """It cannot go on, and what there is of its output is written."""


TERMINAL: Final = frozenset(
    {BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)
TRANSITIONS: Final[Mapping[tuple[BatchStatus, BatchInput], BatchStatus]] = {
    (BatchStatus.VALIDATING, BatchInput.VALIDATE): BatchStatus.IN_PROGRESS,
    (BatchStatus.VALIDATING, BatchInput.CANCEL): BatchStatus.CANCELLING,
    (BatchStatus.VALIDATING, BatchInput.EXPIRE): BatchStatus.EXPIRED,
    (BatchStatus.VALIDATING, BatchInput.FAIL): BatchStatus.FAILED,
    (BatchStatus.IN_PROGRESS, BatchInput.ANSWER): BatchStatus.FINALIZING,
    (BatchStatus.IN_PROGRESS, BatchInput.CANCEL): BatchStatus.CANCELLING,
    (BatchStatus.IN_PROGRESS, BatchInput.EXPIRE): BatchStatus.EXPIRED,
    (BatchStatus.IN_PROGRESS, BatchInput.FAIL): BatchStatus.FAILED,
    (BatchStatus.FINALIZING, BatchInput.WRITE): BatchStatus.COMPLETED,
    (BatchStatus.FINALIZING, BatchInput.FAIL): BatchStatus.FAILED,
    (BatchStatus.CANCELLING, BatchInput.WRITE): BatchStatus.CANCELLED,
    (BatchStatus.CANCELLING, BatchInput.FAIL): BatchStatus.FAILED,
}
"""The status after an input; an absent pair is refused."""


class RequestCounts(msgspec.Struct, kw_only=True):
    """Lines of a batch."""

    total: int = 0
    completed: int = 0
    """Lines that are answered."""
    failed: int = 0
    """Lines that have an error."""


class BatchErrors(msgspec.Struct, kw_only=True):
    """The reasons why a batch failed."""

    object: str = "list"
    data: list[LineError]


class Batch(msgspec.Struct, kw_only=True):
    """A batch; times are in seconds since 1970."""

    id: str
    object: str = "batch"
    endpoint: str
    """The route of its lines."""
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str = WINDOW
    status: BatchStatus = BatchStatus.VALIDATING
    output_file_id: str | None = None
    """The file of its answers, once it is over; null without any."""
    error_file_id: str | None = None
    """The file of the lines without an answer, once it is over; null without any."""
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None

    @property
    def is_over(self) -> bool:
        """True in a terminal state."""
        return self.status in TERMINAL

    def may(self, event: BatchInput) -> bool:
        """Return whether an input is allowed now."""
        return (self.status, event) in TRANSITIONS

    def advance(self, event: BatchInput, now_s: float) -> None:
        """Take an input, and note the time.

        Raises:
            KeyError: the input is none of this status.
        """
        self.status = TRANSITIONS[self.status, event]
        setattr(self, f"{self.status}_at", int(now_s))
