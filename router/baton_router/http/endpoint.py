"""The checks that every call passes before the handler of its route, and the replies to its errors."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton_core.errors import InvalidRequestError
from baton_router.http.app_state import AppState
from baton_router.http.bodies import BodyDecoder, nested_too_deeply, read_body
from baton_router.http.body_refusals import allowed_at
from baton_router.http.calls import Call
from baton_router.http.errors import HttpError, failure_of
from baton_router.http.ignored_fields import Removal, TooManyStepsError, shapes_of
from baton_router.http.picking import PickedError
from baton_router.http.route import Query, Route, Tag
from baton_service.keys import AUTHORIZATION, Keys

_PORT: Final = re.compile(r":\d*\Z")
API_KEY_HEADER: Final = "x-api-key"
"""Anthropic's clients show their key there."""
LINE_TENANT: Final = "baton.line_tenant"
"""Key of the scope of a batch's line, a call that the router itself makes for the tenant named there."""
_WRONG: Final = re.compile(
    r"(?:Expected (.*?)(?:, got .*)?|Invalid enum value .*) - at `\$\.(\w+)`", re.DOTALL
)
"""The beginning of an error that names the parameter that is to blame."""
_TYPES: Final = {"`int`": "an integer", "`float`": "a number", "`bool`": "true or false"}
QueryT = TypeVar("QueryT", bound=Query)


def require_key(keys: Keys, headers: Headers) -> str:
    """Let a request pass whose `Authorization`, or else `x-api-key`, names a key; returns its tenant.

    Raises:
        HttpError: 401.
    """
    api_key = headers.get(API_KEY_HEADER)
    tenant = keys.tenant(headers.get(AUTHORIZATION) or (f"Bearer {api_key}" if api_key else ""))
    if tenant is None:
        raise HttpError(
            401,
            "invalid_api_key",
            "Incorrect API key provided, or none; allowed: Authorization: Bearer and one of this server",
            headers={"www-authenticate": "Bearer"},
        )
    return tenant


def require_same_origin(
    headers: Headers, allowed_origins: Collection[str], own_hosts: Collection[str] | None
) -> None:
    """Refuse a browser's request for a page of another origin: it may reach what only its user can.

    Browsers name the page's origin in every such request, other clients mostly none. Behind a proxy that
    changes `Host`, browsers that reach it over https say that the origin is the same.

    Args:
        own_hosts: hosts of the router's pages beside addresses and names without a dot: whoever has another
            name may have it lead here (DNS rebinding). None: every host may be the router's.

    Raises:
        HttpError: 403.
    """
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is None or headers.get("sec-fetch-site") == "same-origin":
        return
    if "*" in allowed_origins or origin in allowed_origins:
        return
    if origin.partition("://")[2] != host:
        others = ", ".join(allowed_origins) or "any on routes that need a key (--api-key), others"
        allowed = f"this server's own pages, {others} (--allowed-origins)"
        raise HttpError(403, "forbidden_origin", f"origin is {origin!r}; allowed: {allowed}")
    if own_hosts is not None and not _is_own(host, own_hosts):
        allowed = "an IP address, a name without a dot, --host or --advertise-host, any with --api-key"
        raise HttpError(
            403, "forbidden_origin", f"host of a page is {host!r}; allowed: {allowed} (--allowed-origins)"
        )


def _is_own(host: str, own_hosts: Collection[str]) -> bool:
    """Return whether the host of a `Host` header is an address, a name without a dot, or one of these."""
    name = _PORT.sub("", host)
    with suppress(ValueError):
        ip_address(name.strip("[]"))
        return True
    return "." not in name or name in own_hosts


class Endpoint:
    """Checks the key, reads body and parameters, and replies with what the handler returns or raises."""

    def __init__(self, route: Route, state: AppState) -> None:
        self._route = route
        self._state = state
        settings = state.settings
        self._is_strict = settings.strict_fields or route.tag is Tag.OPERATOR
        self._origins = settings.keyed_origins if route.needs_key else settings.allowed_origins
        self._decoder: BodyDecoder[Any] | None = (
            BodyDecoder(route.bodies, is_strict=self._is_strict) if route.bodies else None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call[Any] = Call(self._state, scope, receive, send, self._route.dialect)
        call.is_strict = self._is_strict
        try:
            headers = Headers(scope=scope)
            if self._route.method != "GET":
                require_same_origin(headers, self._origins, self._state.own_hosts)
            if LINE_TENANT in scope:
                call.tenant, call.is_batch_line = scope[LINE_TENANT], True
            elif self._route.needs_key:
                call.tenant = require_key(self._state.keys, headers)
            if self._route.query is None and scope["query_string"]:
                read_query(call, Query)
            with self._state.service.bodies.body() as call.room:
                if self._decoder is not None:
                    call.body = await self._read(call, receive, headers, self._decoder)
                query = () if self._route.query is None else (read_query(call, self._route.query),)
                if (reply := await self._route.handler(call, *query)) is not None:
                    call.room.release()  # the client may take its time with the reply
                    await (call.respond(reply) if isinstance(reply, Response) else call.reply(reply))
        except (ClientDisconnect, PickedError):
            return
        except RecursionError:
            await call.fail(failure_of(nested_too_deeply()))
        except Exception as error:
            await call.fail(failure_of(error))

    async def _read(
        self, call: Call[Any], receive: Receive, headers: Headers, decoder: BodyDecoder[Any]
    ) -> Any:
        room = call.room
        content = await read_body(receive, headers, self._state.settings.max_body_bytes, room)
        if room.is_large:
            await room.wait_to_decode(call.tenant)
            await self._state.share.turn()
        body, removal = decoder.decode(content if content or self._route.needs_body else b"{}")
        call.note_ignored(removal)
        return body


def read_query(call: Call[Any], kind: type[QueryT]) -> QueryT:
    """Read a route's parameters; of a list each value is given apart, as `name` or `name[]`.

    Raises:
        InvalidRequestError: one is of another type, given twice, or unknown where the call is strict.
    """
    given = call.request.query_params
    is_list = {field.name: field.default_factory is list for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name in given:
        stem, texts = name.removesuffix("[]"), given.getlist(name)
        if not is_list.get(name, True) and len(texts) > 1:
            raise InvalidRequestError(name, texts, "one value")
        values |= {stem: texts} if is_list.get(stem) else {name: given[name]}
    if not call.is_strict:
        removal = Removal()
        with suppress(TooManyStepsError):
            removal.remove(values, shapes_of(kind))
        call.note_ignored(removal)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        if (wrong := _WRONG.match(str(error))) is not None:
            allowed, name = wrong.groups()
            allowed = allowed or allowed_at("", kind, [name])
            for kind_name, words in _TYPES.items():
                allowed = allowed.replace(kind_name, words)
            raise InvalidRequestError(name, given[name], allowed) from None
        allowed = ", ".join(is_list) or "none"
        raise InvalidRequestError("query", str(given), f"{allowed} ({error})") from None
