"""Responses to clients of HTTP/1.0, which know no chunks: a body of unknown length ends with the connection.

Source: RFC 9112, 6.1 and 6.3.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def until_close(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Return `app` for one request, whose `cycle` sends no chunks."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = True

        async def send_plain(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if not has_length:
                    cycle.chunked_encoding = cycle.keep_alive = False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer
