"""Hold a server's responses against its OpenAPI description."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator

from tests.e2e.fuzzed_calls import HttpCall
from tests.e2e.hostile_client import HttpAnswer, send

AS_ASKED: Final = frozenset(
    {
        ("/v1/load_lora_adapter", 501),
        ("/v1/unload_lora_adapter", 501),
        ("/collective_rpc", 504),  # the client says how long it may take
    }
)
"""Paths and statuses from 500 on that are no fault of the server."""
NOT_READ: Final = (400, b"Invalid HTTP request received.")
"""Status and body of a request that is no HTTP, before any route is looked for."""
_LAST_EVENTS: Final = frozenset(
    b"event: " + name
    for name in (b"message_stop", b"error", b"response.completed", b"response.incomplete", b"response.failed")
)
"""First lines of the events that end the streams of named events."""
MAX_VALIDATED_BYTES: Final = 2**17
_CONTROLS: Final = frozenset(
    {
        *("/start_profile", "/stop_profile", "/collective_rpc", "/sleep", "/wake_up"),
        *("/update_weights", "/finish_weight_update"),
    }
)
"""Paths whose calls workers may refuse: their message names the field, `param` does not."""
_NAMED: Final = re.compile(r".*\w is .*; allowed: .*", re.DOTALL)


class Documented:
    """The OpenAPI description of one server.

    Args:
        address: host and port.
        within_s: how long it may take to describe itself.
        headers: of that call.
    """

    def __init__(self, address: str, within_s: float, headers: tuple[tuple[str, str], ...] = ()) -> None:
        call = HttpCall(method="GET", path="", target="/openapi.json", headers=headers)
        answer = send(address, call, within_s)
        assert answer is not None, "nobody hung up"
        self.document: dict[str, Any] = json.loads(answer.content)

    def check(self, call: HttpCall, answer: HttpAnswer) -> None:
        """Fail if the description has no such answer, or it is an error that does not say what is wrong."""
        operation = self.document["paths"][call.path].get(call.method.lower())
        if (answer.status, answer.content) == NOT_READ:
            return
        if operation is None:
            assert answer.status in (404, 405) or call.method == "HEAD"  # 404: a parameter holds a slash
            return
        assert str(answer.status) in operation["responses"], "no such status is documented"
        assert answer.status < 500 or (call.path, answer.status) in AS_ASKED
        content = operation["responses"][str(answer.status)].get("content", {})
        if answer.status >= 400:
            self._check_error(call, answer, content)
        elif answer.content_type == "text/event-stream":
            self._check_stream(answer, content[answer.content_type]["schema"])
        elif answer.content_type == "application/json" and answer.content_type in content:
            self._validate(answer.content, content[answer.content_type]["schema"])

    def _check_error(self, call: HttpCall, answer: HttpAnswer, content: Mapping[str, Any]) -> None:
        self._validate(answer.content, content[answer.content_type]["schema"])
        error = json.loads(answer.content)["error"]
        if "param" not in error:  # Anthropic's errors have none
            assert answer.status != 400 or " is " in error["message"], "no field is named"
        elif answer.status == 400 and not (call.path in _CONTROLS and _NAMED.fullmatch(error["message"])):
            assert error["param"], "no field is named"
            assert error["param"] in error["message"], "the message does not name the field"

    def _check_stream(self, answer: HttpAnswer, schema: Mapping[str, Any]) -> None:
        *events, last, rest = answer.content.split(b"\n\n")
        is_named = last.startswith(b"event: ")
        assert rest == b"", "the stream does not end"
        assert last == b"data: [DONE]" or last.partition(b"\n")[0] in _LAST_EVENTS
        for event in (*events, last) if is_named else events:
            chunk = event.partition(b"data: ")[2]
            if "error" in json.loads(chunk):
                assert json.loads(chunk)["error"]["type"] != "server_error"
            else:
                self._validate(chunk, schema)

    def _validate(self, content: bytes, schema: Mapping[str, Any]) -> None:
        value = json.loads(content)
        if len(content) <= MAX_VALIDATED_BYTES:
            Draft202012Validator({**schema, "components": self.document["components"]}).validate(value)
