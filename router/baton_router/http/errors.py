"""Errors of HTTP calls: OpenAI's body, statuses, names of fields, and the ways in which APIs write them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

import msgspec

from baton_core.errors import (
    STATUS,
    BatonError,
    ContextLengthError,
    ErrorCode,
    InvalidRequestError,
    in_json_words,
    retry_after,
)

_TYPES: Final = {429: "rate_limit_error"}
_INTERNAL_TEXT: Final = "internal error; the router's log has the cause"
_INTERNAL_CODES: Final = frozenset(
    {ErrorCode.INTERNAL, ErrorCode.INVALID_MODEL, ErrorCode.INVALID_CONFIG, ErrorCode.INCOMPATIBLE_WORKER}
)
"""Codes whose messages are for the operator; they are logged where they are raised."""
_ROUTELESS: Final = ("unknown_route", "method_not_allowed")
_MAX_MESSAGE_CHARACTERS: Final = 2000
_NAMED: Final = re.compile(r"([\w.\[\]]+) is ")
"""Pattern of the messages of `InvalidRequestError`; of a worker's error only the message arrives."""
_log = logging.getLogger(__name__)


class ErrorDetail(msgspec.Struct, kw_only=True):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    """The field of the request that is to blame."""
    code: str | None


class ErrorBody(msgspec.Struct, kw_only=True):
    """The body of every reply that is an error."""

    error: ErrorDetail
    detail: str | msgspec.UnsetType = msgspec.UNSET
    """The phrase of the status, where no route takes the call: FastAPI's servers have only this there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error, ready to be sent."""

    status: int
    body: ErrorBody
    headers: Mapping[str, str] = field(default_factory=dict)
    length: ContextLengthError | None = None
    """The error, where a prompt is too long."""


class HttpError(Exception):
    """An error of HTTP alone: of a route, a method, a key or a size."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def failure_of(error: Exception) -> Failure:
    """Return the failure that a client gets; details of internal errors go to the log."""
    match error:
        case HttpError():
            return _failure(error.status, error.code, str(error), param=error.param, headers=error.headers)
        case ContextLengthError():
            failure = _failure(400, "context_length_exceeded", str(error), param=error.field)
            return replace(failure, length=error)
        case InvalidRequestError():
            return _failure(STATUS[error.code].http, error.code, str(error), param=error.field)
        case BatonError() if error.code in _INTERNAL_CODES:
            return _failure(500, ErrorCode.INTERNAL, _INTERNAL_TEXT)
        case BatonError():
            return _failure_of_code(error.code, str(error), retry_after(error))
        case _:
            _log.error("a request failed", exc_info=error)
            return _failure(500, ErrorCode.INTERNAL, _INTERNAL_TEXT)


def _failure_of_code(code: ErrorCode, message: str, retry_after_s: int | None) -> Failure:
    status = STATUS[code]
    if code is ErrorCode.NOT_FOUND:
        return _failure(status.http, "model_not_found", message, param="model")
    if (
        code in (ErrorCode.INVALID_REQUEST, ErrorCode.ALREADY_EXISTS)
        and (named := _NAMED.match(message)) is not None
    ):
        return _failure(status.http, code, message, param=named[1])
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return _failure(status.http, code, message, headers=headers)


def _failure(
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Failure:
    text = in_json_words(message)[:_MAX_MESSAGE_CHARACTERS].encode(errors="replace").decode()
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    detail = ErrorDetail(message=text, type=kind, param=param, code=str(code))
    body = ErrorBody(error=detail)
    if code in _ROUTELESS:
        body.detail = HTTPStatus(status).phrase
    return Failure(status=status, body=body, headers=headers or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The way of one API."""

    error: type
    """The type of the body of an error."""
    error_body: Callable[[Failure, str], msgspec.Struct]
    """Returns the body of an error, given the name of its call."""
    names_events: bool
    """True if each event of a stream has a line with its type: the tag of its struct, error without one."""
    last_event: bytes
    """Follows the last event of a stream."""
    request_id_header: str = ""
    """Header in which the clients look for a call's name; empty: `x-request-id`, which all replies have."""

    def head(self, event: msgspec.Struct) -> bytes:
        """Return what comes before the data of an event."""
        if not self.names_events:
            return b""
        return b"event: %b\n" % str(type(event).__struct_config__.tag or "error").encode()


OPENAI: Final = Dialect(
    error=ErrorBody,
    error_body=lambda failure, _: failure.body,
    names_events=False,
    last_event=b"data: [DONE]\n\n",
)


_INDEX: Final = re.compile(r"\[\d+\]")


def without_numbers(field: str) -> str:
    """Return the name of a field with `[]` in the place of each index."""
    return _INDEX.sub("[]", field)


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Name fields in the block's errors as its caller does; `names` has the caller's by the block's;
    `[]` in both is any index.

    Raises:
        InvalidRequestError: one that the block raises.
    """
    try:
        yield
    except InvalidRequestError as error:
        name = names.get(error.field) or names.get(without_numbers(error.field))
        if name is not None:
            indexes = iter(_INDEX.findall(error.field))
            name = re.sub(r"\[\]", lambda _: next(indexes), name)
            error.rename(name)
        raise
