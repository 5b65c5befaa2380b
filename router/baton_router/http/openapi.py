"""OpenAPI 3.1, made of the table of routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec

from baton_router.http.calls import Call
from baton_router.http.errors import ErrorBody
from baton_router.http.route import Route

_REF: Final = "#/components/schemas/{name}"
_PHRASES: Final = {499: "Client Closed Request"}
"""Of statuses that no standard has."""
_PARAMETER: Final = re.compile(r"{(\w+)(?::\w+)?}")


def describe(routes: Sequence[Route], root_path: str) -> Route:
    """A route that answers with the description of `routes` and of itself."""

    async def answer(call: Call[None]) -> None:
        await call.reply(document)

    described = Route(method="GET", path="/openapi.json", summary="This description", answer=answer)
    document = _document((*routes, described), root_path)
    return described


def _document(routes: Sequence[Route], root_path: str) -> dict[str, Any]:
    types = [
        ErrorBody,
        *(kind for route in routes for kind in (route.body, route.reply, route.chunk) if kind),
    ]
    types = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": version("baton")},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": route.summary, "responses": _responses(route, schema_of)}
    if route.body is not None:
        content = {"application/json": {"schema": schema_of[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    if parameters := [*_path_parameters(route), *_query_parameters(route)]:
        operation["parameters"] = parameters
    if route.needs_key:
        operation["security"] = [{"key": []}]
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = _PARAMETER.findall(route.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    _, components = msgspec.json.schema_components((route.query,), ref_template=_REF)
    properties = components[route.query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def _responses(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.reply is not None:
        content["application/json"] = {"schema": schema_of[route.reply]}
    if route.chunk is not None:
        content["text/event-stream"] = {"schema": schema_of[route.chunk]}
    done: dict[str, Any] = {"description": "Done"}
    responses = {"200": {**done, "content": content} if content else done}
    statuses = {*route.errors, *((401,) if route.needs_key else ()), 500}
    if route.body is not None:
        statuses |= {400, 408, 413, 415}
    for status in sorted(statuses):
        schema = {"schema": schema_of[ErrorBody]}
        responses[str(status)] = {
            "description": _PHRASES.get(status) or HTTPStatus(status).phrase,
            "content": {"application/json": schema},
        }
    return responses
