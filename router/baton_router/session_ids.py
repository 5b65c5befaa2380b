"""What clients may call the session that a request belongs to."""

from __future__ import annotations

from typing import Final

from baton_core.errors import InvalidRequestError

MAX_SESSION_ID_CHARACTERS: Final = 128


def checked_session_id(field: str, session_id: str) -> str:
    """Return a session's name.

    Raises:
        InvalidRequestError: it is too long; the message names `field`.
    """
    if len(session_id) > MAX_SESSION_ID_CHARACTERS:
        raise InvalidRequestError(field, session_id, f"at most {MAX_SESSION_ID_CHARACTERS} characters")
    return session_id
