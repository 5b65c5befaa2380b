"""Decisions at both ends of a new stream about the session that the worker offers to resume.

A worker says hello with its own epoch, which is later at each start of its process, and with the epoch of the
session that it has with this router, which is 0 for none. The router answers with a welcome, which names the
epoch of the session that the stream is used for: the offered one, or a new one.
"""

from __future__ import annotations

from enum import Enum, auto


class HelloAnswer(Enum):
    """A router's answer to a worker's hello."""

    REFUSE = auto()
    """A worker that was started later has the name."""
    BEGIN = auto()
    """Begin a session: there is none."""
    BEGIN_ANOTHER = auto()
    """End the session, which the worker has forgotten, and begin another."""
    RESUME = auto()
    """Attach the stream to the session; if that ends it, begin another."""


def answer_hello(
    worker_epoch: int, offered_epoch: int, *, session_epoch: int | None, known_epoch: int | None
) -> HelloAnswer:
    """Return a router's answer to a hello.

    Args:
        worker_epoch: the worker's own epoch.
        offered_epoch: epoch of the session that it offers to resume.
        session_epoch: epoch of the session that the router has with a worker of this name; None for none.
        known_epoch: epoch of that worker.
    """
    if session_epoch is None:
        return HelloAnswer.BEGIN
    if worker_epoch < (known_epoch or 0):
        return HelloAnswer.REFUSE
    if worker_epoch == known_epoch and offered_epoch != session_epoch:
        return HelloAnswer.BEGIN_ANOTHER
    return HelloAnswer.RESUME


def begins_after_welcome(welcome_epoch: int, offered_epoch: int) -> bool:
    """Return whether a worker begins a session after a welcome that did not resume the offered one.

    A welcome to the offered session, which has ended in the meantime, begins none: the worker dials again.
    """
    return welcome_epoch != offered_epoch
