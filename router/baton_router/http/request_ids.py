"""The name of each request: the client's `x-request-id`, or one made here; on every response."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton_core.errors import InvalidRequestError
from baton_router.prompt_reader import MAX_REQUEST_ID_CHARACTERS
from baton_service.logs import current_request_id

HEADER: Final = "x-request-id"
_KEY: Final = "baton.request_id"
_IS_GIVEN: Final = "baton.request_id_is_given"


class RequestIds:
    """Names each request before `app` sees it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(HEADER, "")
        is_name = _is_name(given)
        scope[_KEY] = given if is_name else f"req-{secrets.token_hex(8)}"
        scope[_IS_GIVEN] = is_name
        current_request_id.set(scope[_KEY])

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = scope[_KEY]
            await send(message)

        await self._app(scope, receive, named)


def request_id_of(scope: Scope) -> str:
    """The name of a request."""
    return str(scope[_KEY])


def adopt_request_id(scope: Scope, name: str | None) -> str:
    """Take the name that the body gives, if the header gave none; returns the name in force.

    Raises:
        InvalidRequestError: a header could not carry it.
    """
    if name is not None and not _is_name(name):
        allowed = f"1 to {MAX_REQUEST_ID_CHARACTERS} printable ASCII characters"
        raise InvalidRequestError("request_id", name, allowed)
    if name is not None and not scope[_IS_GIVEN]:
        scope[_KEY] = name
        current_request_id.set(name)
    return request_id_of(scope)


def _is_name(text: str) -> bool:
    return text.isascii() and text.isprintable() and 0 < len(text) <= MAX_REQUEST_ID_CHARACTERS
