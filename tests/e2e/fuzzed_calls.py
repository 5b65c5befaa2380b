"""Calls of a server that are drawn from its OpenAPI description: good ones, nearly good ones, and rubbish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final
from urllib.parse import quote

from tests.e2e.hostile_values import JUNK, PLAUSIBLE

Schema = Mapping[str, Any]
MAX_OPTIONAL: Final = 6
"""Fields of an object beside those it must have: with many, hardly any call would be good."""
SHORTENING: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Fields that keep answers short; nearly always there."""
LARGE_BYTES: Final = 5 * 2**20
HEADERS: Final = (
    *(
        ("content-type", kind)
        for kind in ("application/json; charset=utf-16", "text/plain", "", "APPLICATION/JSON")
    ),
    *(
        ("content-encoding", "gzip"),
        ("accept", "image/png"),
        ("expect", "100-continue"),
        ("range", "bytes=0-1"),
    ),
    *(("authorization", key) for key in ("Bearer", "Basic YTpi", "Bearer \xff", "x" * 9000)),
    *(("x-request-id", name) for name in ("a", "a" * 4000, "\xe9", "\t")),
    *(
        ("traceparent", "00-0-0-0"),
        ("cookie", "a=" * 3000),
        ("origin", "null"),
        ("x-forwarded-for", "127.0.0.1"),
    ),
    *(("upgrade", "websocket"), ("upgrade", "h2c"), ("connection", "upgrade"), ("connection", "close")),
)
FORM: Final = "multipart/form-data"
FORM_HEADERS: Final = (("content-type", f"{FORM}; boundary=form"),)
PATH_VALUES: Final = ("a", "baton", "..", "%", "a/b", "é\0", "x" * 3000)
QUERY_VALUES: Final = ("0", "1", "2", "-1", "", "a", "9" * 400, "1.5", "true", "é", "weights", "kv_cache")
QUERIES: Final = ("a=1", "&&&", "%ff=%zz", "level=1&level=2", "x" * 5000)
METHODS: Final = ("PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "POST", "GET")
NAMES: Final = ("a", "\ud800", "__class__", "x" * 5000, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One HTTP call of a client."""

    method: str
    path: str
    """As the description has it."""
    target: str
    """With parameters and query."""
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes | None = None
    is_chunked: bool = False
    sends_bytes: int | None = None
    """Hang up after so many bytes of the content."""
    reads_bytes: int | None = None
    """Hang up after so many bytes of the answer's body; 0 does not wait for its head."""

    def with_header(self, name: str, value: str) -> HttpCall:
        """Return the call with one more header."""
        return replace(self, headers=(*self.headers, (name, value)))


class Fuzz:
    """Draws calls of the server that `document` describes.

    Args:
        avoided: paths that are not called.
    """

    def __init__(self, document: Schema, avoided: tuple[str, ...] = ()) -> None:
        self._schemas: Mapping[str, Schema] = document["components"]["schemas"]
        self._with_body: list[tuple[str, str, Schema]] = []
        self._without_body: list[tuple[str, str, Schema]] = []
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                entry = (method.upper(), path, operation)
                if path in avoided:
                    continue
                if "requestBody" not in operation:
                    self._without_body.append(entry)
                else:  # routes that generate have the most fields
                    generates = "text/event-stream" in operation["responses"]["200"].get("content", ())
                    self._with_body += [entry] * (3 if generates else 1)

    def draw(self, random: Random, *, only_with_body: bool = False) -> HttpCall:
        """Draw a call; nine of ten have a body, or all."""
        if only_with_body or random.random() < 0.9:
            return self._draw_with_body(random)
        return self._draw_without_body(random)

    def _draw_with_body(self, random: Random) -> HttpCall:
        method, path, operation = random.choice(self._with_body)
        ((kind, body),) = operation["requestBody"]["content"].items()
        is_form = kind == FORM
        content = (
            self._form(random, body["schema"]) if is_form else self._valid(random, body["schema"]).encode()
        )
        if random.random() < 0.1:
            content = _damaged(random, content)
        leaves_while_asking, leaves_while_listening = random.random() < 0.03, random.random() < 0.06
        return HttpCall(
            method=method,
            path=path,
            target=_draw_target(random, path, operation),
            headers=(*FORM_HEADERS[:is_form], *_draw_headers(random)),
            content=content,
            is_chunked=random.random() < 0.1,
            sends_bytes=random.randrange(len(content) + 1) if leaves_while_asking else None,
            reads_bytes=random.choice((0, 1, 300)) if leaves_while_listening else None,
        )

    def _draw_without_body(self, random: Random) -> HttpCall:
        method, path, operation = random.choice(self._without_body)
        if random.random() < 0.2:
            method = random.choice(METHODS)
        content = random.choice((None, None, b"{}", b"\xff"))
        target = _draw_target(random, path, operation)
        return HttpCall(
            method=method, path=path, target=target, headers=_draw_headers(random), content=content
        )

    def _field(self, random: Random, name: str, schema: Schema) -> str:
        """JSON text for a field: mostly a value known to be good, or bad, for one of this name."""
        if random.random() < 0.05:
            return random.choice(JUNK)
        if name in PLAUSIBLE and random.random() < 0.8:
            return random.choice(PLAUSIBLE[name])
        return self._valid(random, schema)

    def _valid(self, random: Random, schema: Schema) -> str:
        """JSON text that keeps to a schema, but for a field here and there."""
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        if "anyOf" in schema:
            kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
            return self._valid(random, random.choice(kinds)) if random.random() < 0.9 else "null"
        if "enum" in schema:
            return json.dumps(random.choice(schema["enum"]))
        match schema.get("type"):
            case "object" if "properties" in schema:
                return self._object(random, schema)
            case "object":
                values = schema.get("additionalProperties", {})
                names = [_draw_text(random) for _ in range(random.randrange(3))]
                return _write_object([(name, self._valid(random, values)) for name in names])
            case "array":
                size = random.randint(schema.get("minItems", 0), min(3, schema.get("maxItems", 3)))
                return f"[{','.join(self._field(random, '', schema.get('items', {})) for _ in range(size))}]"
            case kind:
                return _draw_scalar(random, kind)

    def _form(self, random: Random, schema: Schema) -> bytes:
        """Draw a form, whose fields are the texts of their JSON, without quotation marks."""
        head = "--form\r\nContent-Disposition: form-data; name="
        parts = [
            f'{head}"{name}"{"; filename=a" * (name == "file")}\r\n\r\n' + text.strip('"')
            for name, text in self._fields(random, self._schemas[schema["$ref"].rpartition("/")[2]])
        ]
        return "\r\n".join((*parts, "--form--\r\n")).encode(errors="surrogatepass")

    def _object(self, random: Random, schema: Schema) -> str:
        return _write_object(self._fields(random, schema))

    def _fields(self, random: Random, schema: Schema) -> list[tuple[str, str]]:
        properties, required = schema["properties"], schema.get("required", [])
        optional = [name for name in properties if name not in required]
        names = [*required, *random.sample(optional, min(len(optional), random.randint(0, MAX_OPTIONAL)))]
        names += [name for name in SHORTENING if name in properties and random.random() < 0.95]
        fields = [(name, self._field(random, name, properties[name])) for name in dict.fromkeys(names)]
        match random.randrange(60):
            case 0 if fields:
                fields.pop(random.randrange(len(fields)))
            case 1 if fields:
                fields.append((random.choice(fields)[0], random.choice(JUNK)))
            case 2:
                fields.append((random.choice(NAMES), "1"))
        return fields


def _draw_target(random: Random, path: str, operation: Schema) -> str:
    query = []
    for parameter in operation.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", quote(random.choice(PATH_VALUES)))
        elif random.random() < 0.7:
            query.append(f"{quote(name)}={quote(random.choice(QUERY_VALUES))}")
    if random.random() < 0.1:
        query.append(random.choice(QUERIES))
    return path + ("?" + "&".join(query) if query else "")


def _draw_headers(random: Random) -> tuple[tuple[str, str], ...]:
    return tuple(random.sample(HEADERS, random.randint(1, 3))) if random.random() < 0.1 else ()


def _draw_scalar(random: Random, kind: str | None) -> str:
    """JSON text of a type, or of any for None."""
    match kind or random.choice(("string", "integer", "number", "boolean", "null", "object", "array")):
        case "string":
            return json.dumps(_draw_text(random))
        case "integer":
            return str(random.choice((random.randint(-2, 100), random.randint(-(2**70), 2**70))))
        case "number":
            return json.dumps(
                random.choice((random.uniform(0, 2), random.uniform(-1e3, 1e3), random.uniform(0, 1e308)))
            )
        case "boolean":
            return random.choice(("true", "false"))
        case "object":
            return f"{{{json.dumps(_draw_text(random))}:{_draw_scalar(random, None)}}}"
        case "array":
            return f"[{_draw_scalar(random, None)},{_draw_scalar(random, None)}]"
        case _:
            return "null"


def _draw_text(random: Random) -> str:
    limit = random.choice((0x80, 0x300, 0xD800, 0x110000))
    return "".join(chr(random.randrange(limit)) for _ in range(random.randrange(12)))


def _damaged(random: Random, content: bytes) -> bytes:
    """Other bytes, or these with some changed, cut out, or many more behind them."""
    match random.randrange(20):
        case 0:
            return content.ljust(LARGE_BYTES)
        case 1 | 2 | 3 | 4:
            return random.randbytes(random.randrange(300))
        case _:
            place = random.randrange(len(content) + 1)
            return (
                content[:place]
                + random.randbytes(random.randrange(3))
                + content[place + random.randrange(30) :]
            )


def _write_object(fields: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields) + "}"
