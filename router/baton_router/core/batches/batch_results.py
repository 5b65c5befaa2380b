"""The results of a batch, in OpenAI's format."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec


class BatchError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The reason why a line has no answer; `line` counts from 1 and is that of a line that is no request."""

    code: str
    message: str
    line: int | None = None


class BatchResponse(msgspec.Struct, kw_only=True):
    """The answer of the server."""

    status_code: int
    request_id: str
    body: Any


class BatchResult(msgspec.Struct, kw_only=True):
    """A line of the output."""

    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None

    @property
    def key(self) -> str | int | None:
        """The name of the line that it belongs to: its number where it has no id."""
        if self.custom_id is None and self.error is not None:
            return self.error.line
        return self.custom_id


def answered(result_id: str, custom_id: str, response: BatchResponse) -> BatchResult:
    """Return the result of a request; an answer other than 200 is an error too, and stays its `body`."""
    error = None
    if response.status_code != HTTPStatus.OK:
        body = response.body
        told = body.get("error") if isinstance(body, dict) else None
        told = told if isinstance(told, dict) else {}
        error = BatchError(
            code=str(told.get("code") or response.status_code),
            message=str(told.get("message") or body),
        )
    return BatchResult(id=result_id, custom_id=custom_id, response=response, error=error)
