"""OpenAPI 3.1, made of the table of routes; fields are described by the docstrings below them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec import inspect as types

from baton_router.http.calls import Call
from baton_router.http.ignored_fields import IGNORED_HEADER
from baton_router.http.route import PARAMETER, Route, Tag

_REF: Final = "#/components/schemas/{name}"
_DESCRIPTION: Final = (
    "OpenAI's API with vLLM's further fields. Unknown fields are ignored and named in the header "
    f"`{IGNORED_HEADER}`, or refused by name with --strict-fields."
)
_TAGS: Final = {
    Tag.CHAT: "Conversations.",
    Tag.COMPLETIONS: "Texts that are continued.",
    Tag.MESSAGES: "Conversations, in the format of Anthropic's API.",
    Tag.RESPONSES: "Conversations, in the format of OpenAI's Responses API; responses are kept a while.",
    Tag.POOLING: "Embeddings, classes and scores, of models that pool.",
    Tag.FILES: "Inputs and outputs of batches; only with --files-directory.",
    Tag.BATCHES: "Requests that are answered between others; only with --files-directory.",
    Tag.TOKENS: "Token ids: in and out, from text and to text.",
    Tag.MODELS: "The model that is served, by its names.",
    Tag.SERVER: "The state of the router.",
    Tag.DEBUG: "The cluster, and where requests spend their time.",
    Tag.OPERATOR: "Changes to workers; only with --enable-operator-routes.",
    Tag.PAGES: "Pages for people.",
}
_PHRASES: Final = {499: "Client Closed Request"}
"""Phrases of statuses that no standard has."""


def field_docs(kind: type) -> dict[str, str]:
    """Descriptions of the fields of a class, inherited ones too, by name in JSON; empty without source."""
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        docs |= _own_docs(owner)
    node: Any = types.type_info(kind)
    return {field.encode_name: docs[field.name] for field in node.fields if field.name in docs}


def classes_of(kinds: Iterable[Any]) -> dict[str, type]:
    """Return all classes that some types are made of, by name."""
    found: dict[str, type] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and kind.__name__ not in found:
            found[kind.__name__] = kind
            waiting += get_type_hints(kind).values()
    return found


@cache
def _own_docs(kind: type) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = inspect.cleandoc(text)
    return docs


def describe(routes: Sequence[Route], root_path: str) -> Route:
    """A route that replies with the description of `routes` and of itself.

    The first to ask waits for it: it is a third of what a router's start would compute.
    """

    @cache
    def document() -> dict[str, Any]:
        return _document(documented, root_path)

    async def reply(call: Call[None]) -> dict[str, Any]:
        return await asyncio.to_thread(document)

    described = Route(
        "/openapi.json",
        "getOpenApi",
        "This description",
        reply,
        method="GET",
        tag=Tag.SERVER,
        media_type="application/json",
    )
    documented = (*routes, described)
    return described


def _document(routes: Sequence[Route], root_path: str) -> dict[str, Any]:
    types = [
        kind
        for route in routes
        for kind in (route.dialect.error, *route.bodies, route.multipart, route.reply, route.chunk)
        if kind
    ]
    types = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    for name, kind in classes_of(types).items():
        properties = components.get(name, {}).get("properties")
        for field, text in field_docs(kind).items() if properties else ():
            properties[field] = {**properties[field], "description": text}
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema_of)
    used = {route.tag for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": version("baton"), "description": _DESCRIPTION},
        "servers": [{"url": root_path or "/"}],
        "tags": [{"name": tag, "description": text} for tag, text in _TAGS.items() if tag in used],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "tags": [route.tag],
        "summary": route.summary,
        "responses": _responses(route, schema_of),
    }
    content: dict[str, Any] = {}
    if route.bodies:
        schemas = [schema_of[body] for body in route.bodies]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        content["application/json"] = {"schema": schema, "example": route.example}
    if route.multipart is not None:
        content["multipart/form-data"] = {"schema": schema_of[route.multipart]}
    if content:
        operation["requestBody"] = {"required": route.needs_body, "content": content}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PARAMETER.findall(route.path)
    ]
    if parameters := [*parameters, *_query_parameters(route)]:
        operation["parameters"] = parameters
    if route.needs_key:
        operation["security"] = [{"key": []}]
    return operation


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    _, components = msgspec.json.schema_components((route.query,), ref_template=_REF)
    component = components[route.query.__name__]
    docs, required = field_docs(route.query), component["required"]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": schema,
            **({"description": docs[name]} if name in docs else {}),
        }
        for name, schema in component["properties"].items()
    ]


def _responses(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.reply is not None:
        content["application/json"] = {"schema": schema_of[route.reply]}
    if route.media_type:
        content[route.media_type] = {"schema": {}}
    if route.chunk is not None:
        content["text/event-stream"] = {"schema": schema_of[route.chunk]}
    done: dict[str, Any] = {"description": "Done"}
    responses = {"200": {**done, "content": content} if content else done}
    of_callers = (*((401,) if route.needs_key else ()), *((403,) if route.method != "GET" else ()))
    statuses = {*route.errors, *of_callers, 500}
    if route.bodies or route.multipart:
        statuses |= {400, 408, 413, 415}
    for status in sorted(statuses):
        schema = {"schema": schema_of[route.dialect.error]}
        responses[str(status)] = {
            "description": _PHRASES.get(status) or HTTPStatus(status).phrase,
            "content": {"application/json": schema},
        }
    return responses
