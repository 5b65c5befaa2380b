"""Routes, and the groups in which modules declare them above their handlers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec
from starlette.responses import Response

from baton_router.http.errors import OPENAI, Dialect

PARAMETER: Final = re.compile(r"{(\w+)(?::\w+)?}")
"""Parameter of a path, in braces with its type."""

BATCH_PRIORITY: Final = 4
"""Priority of requests of batches: workers and the queue take others first."""
GENERATING: Final = (404, 429, 502, 503, 504)
"""Statuses of routes that have workers compute."""
CONVERTING: Final = (404, 429, 503, 504)
"""Statuses of routes that read prompts alone."""
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Any]])


class Tag(StrEnum):
    """Groups of routes; OpenAI's where the route is OpenAI's."""

    CHAT = "Chat"
    COMPLETIONS = "Completions"
    MESSAGES = "Messages"
    RESPONSES = "Responses"
    POOLING = "Pooling"
    FILES = "Files"
    BATCHES = "Batches"
    TOKENS = "Tokens"
    MODELS = "Models"
    SERVER = "Server"
    DEBUG = "Debug"
    OPERATOR = "Operator"
    PAGES = "Pages"


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters after the question mark; most routes take none."""


@dataclass(frozen=True, slots=True)
class Route:
    """One route: its types describe it at /openapi.json."""

    path: str
    operation_id: str
    """The name by which generated clients call it: unique, never changed, and OpenAI's where the route is."""
    summary: str
    handler: Callable[..., Awaitable[Any]]
    """Gets the call, and its parameters as `query` if it takes some. Returns the reply, or a whole response;
    None where it has replied itself, as with a stream."""
    _: KW_ONLY
    tag: Tag
    method: str = "GET"
    bodies: tuple[type, ...] = ()
    """Types that the body may have, told apart by their required fields; none: it is not read."""
    needs_body: bool = True
    """False: an empty body has the default of every field."""
    multipart: type | None = None
    """Type of the fields of a body of multipart/form-data, which the handler reads as it comes."""
    batch_defaults: Mapping[str, Any] | None = None
    """Fields that requests of batches have which do not name them; None: batches may not have the route."""
    example: Mapping[str, Any] | None = None
    """A body to begin with, for those who try the route."""
    query: type[Query] | None = None
    """Type of the parameters after the question mark, which the handler gets too; None: it takes none."""
    reply: type | None = None
    """Type of the reply; None: no JSON, or any."""
    chunk: type | UnionType | None = None
    """Type of a streamed reply's chunks."""
    media_type: str = ""
    """Media type of a reply that has neither `reply` nor `chunk`."""
    errors: tuple[int, ...] = ()
    """Statuses it may reply with beside 401 and 500."""
    needs_key: bool = True
    dialect: Dialect = OPENAI
    """The way in which errors and the events of streams are written."""


def _options(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type that it is, but None and whole responses."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return tuple(one for one in kinds if one not in (NoneType, Response))


class Routes:
    """The routes of one module, which share these fields of `Route` unless they say otherwise."""

    def __init__(self, **shared: Any) -> None:
        self._shared = shared
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def route(self, path: str, operation_id: str, summary: str, **own: Any) -> Callable[[HandlerT], HandlerT]:
        """Declare a route of the handler below, which says what the types of body, query and reply are.

        Where a handler returns a `Response`, or replies itself, `reply` says what.
        """

        def declare(handler: HandlerT) -> HandlerT:
            hints = get_type_hints(handler)
            (body,) = get_args(hints["call"])
            types: dict[str, Any] = {"bodies": _options(body), "query": hints.get("query")}
            types["reply"] = next(iter(_options(hints["return"])), None)
            self._routes.append(Route(path, operation_id, summary, handler, **(types | self._shared | own)))
            return handler

        return declare
