"""The router's answer to a hello, and what a worker does after a welcome."""

from __future__ import annotations

import pytest

from baton_core.sessions.handshake import HelloAnswer, answer_hello, begins_after_welcome

CASES = (
    # worker's epoch, offered, session's, known worker's, answer
    (5, 0, None, None, HelloAnswer.BEGIN),
    (5, 7, None, None, HelloAnswer.BEGIN),
    (5, 7, 7, 5, HelloAnswer.RESUME),
    (5, 0, 7, 5, HelloAnswer.BEGIN_ANOTHER),
    (5, 6, 7, 5, HelloAnswer.BEGIN_ANOTHER),
    (4, 7, 7, 5, HelloAnswer.REFUSE),
    (4, 0, 7, 5, HelloAnswer.REFUSE),
    (6, 0, 7, 5, HelloAnswer.RESUME),
    (6, 0, 7, None, HelloAnswer.RESUME),
)


@pytest.mark.parametrize(("worker", "offered", "session", "known", "answer"), CASES)
def test_a_hello_resumes_only_the_session_that_both_ends_have(
    worker: int, offered: int, session: int | None, known: int | None, answer: HelloAnswer
) -> None:
    assert answer_hello(worker, offered, session_epoch=session, known_epoch=known) is answer


def test_a_welcome_to_a_session_that_has_ended_begins_none() -> None:
    assert not begins_after_welcome(7, 7)
    assert begins_after_welcome(8, 7)
    assert begins_after_welcome(1, 0)
