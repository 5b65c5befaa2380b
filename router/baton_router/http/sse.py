"""Server-sent events as OpenAI's clients read them: `data: {...}` for each chunk, then `data: [DONE]`."""

from __future__ import annotations

from typing import Final

from starlette.types import Message

DONE: Final = b"data: [DONE]\n\n"
RESUME_HEADER: Final = b"x-resume-token"
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx pass on each event at once
)


def start(resume_token: str = "") -> Message:
    """The response's head."""
    headers = [*_HEADERS, *([(RESUME_HEADER, resume_token.encode())] if resume_token else [])]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def event(data: bytes) -> bytes:
    """One event; `data` is one line."""
    return b"data: " + data + b"\n\n"


def body(data: bytes, *, is_last: bool = False) -> Message:
    """A part of the response's body."""
    return {"type": "http.response.body", "body": data, "more_body": not is_last}
