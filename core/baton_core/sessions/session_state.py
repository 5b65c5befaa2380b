"""The states of one end of a session, and the inputs that change them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SessionState(StrEnum):
    NEW = "new"
    """No stream yet."""
    CONNECTED = "connected"
    BROKEN = "broken"
    """The stream is gone; a new one may resume the session."""
    OVER = "over"


class SessionInput(StrEnum):
    STREAM_UP = "stream_up"
    STREAM_DOWN = "stream_down"
    PEER_SILENT = "peer_silent"
    NOT_RESUMED = "not_resumed"
    PEER_RESTARTED = "peer_restarted"
    PEER_DIVERGED = "peer_diverged"
    """The peer's counts cannot be those of this session."""
    OVERFLOW = "overflow"
    CLOSE = "close"


TERMINAL: Final = frozenset({SessionState.OVER})

TRANSITIONS: Final[dict[tuple[SessionState, SessionInput], SessionState]] = {
    (SessionState.NEW, SessionInput.STREAM_UP): SessionState.CONNECTED,
    (SessionState.NEW, SessionInput.PEER_DIVERGED): SessionState.OVER,
    (SessionState.NEW, SessionInput.OVERFLOW): SessionState.OVER,
    (SessionState.NEW, SessionInput.CLOSE): SessionState.OVER,
    (SessionState.CONNECTED, SessionInput.STREAM_UP): SessionState.CONNECTED,
    (SessionState.CONNECTED, SessionInput.STREAM_DOWN): SessionState.BROKEN,
    (SessionState.CONNECTED, SessionInput.PEER_SILENT): SessionState.OVER,
    (SessionState.CONNECTED, SessionInput.PEER_RESTARTED): SessionState.OVER,
    (SessionState.CONNECTED, SessionInput.PEER_DIVERGED): SessionState.OVER,
    (SessionState.CONNECTED, SessionInput.OVERFLOW): SessionState.OVER,
    (SessionState.CONNECTED, SessionInput.CLOSE): SessionState.OVER,
    (SessionState.BROKEN, SessionInput.STREAM_UP): SessionState.CONNECTED,
    (SessionState.BROKEN, SessionInput.NOT_RESUMED): SessionState.OVER,
    (SessionState.BROKEN, SessionInput.PEER_RESTARTED): SessionState.OVER,
    (SessionState.BROKEN, SessionInput.PEER_DIVERGED): SessionState.OVER,
    (SessionState.BROKEN, SessionInput.OVERFLOW): SessionState.OVER,
    (SessionState.BROKEN, SessionInput.CLOSE): SessionState.OVER,
}


def next_state(state: SessionState, cause: SessionInput) -> SessionState:
    """Apply the table.

    Raises:
        RuntimeError: the pair is absent.
    """
    if (state, cause) not in TRANSITIONS:
        raise RuntimeError(f"a session cannot take {cause} in state {state}")
    return TRANSITIONS[state, cause]
