"""Checks of what a session carries; each names the field, its value and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeVar

from google.protobuf.message import Message

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import MAX_N
from baton_service.grpc_options import MAX_GRPC_BYTES

MAX_COMMAND_BYTES: Final = 2**20 - 64
"""Size of a message without its number and frame, with which it stays within 1 MiB."""
MAX_REPORT_BYTES: Final = MAX_GRPC_BYTES - 64
"""Log-probabilities of a whole vocabulary are larger than any command."""
_TOKEN_ID_LIMIT: Final = 2**31
_WORKER_ID: Final = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_PEER_ADDRESS: Final = re.compile(
    r"tcp://([^\s:*]{1,255}|\[[^\s\]]{1,255}\]):[1-9][0-9]{0,4}(#[0-9a-f]{64})?|"
    r"(ipc|inproc)://[^\x00-\x1f\x7f]{1,255}"
)

Code = TypeVar("Code", bound=StrEnum)


def check_size(num_bytes: int, limit: int) -> None:
    """Refuse a message that is too large to send."""
    if num_bytes > limit:
        raise InvalidRequestError("message", f"{num_bytes} bytes", f"at most {limit} bytes")


def chosen(message: Message, oneof: str) -> str:
    """Name of the field that is set in `oneof`."""
    name: str | None = message.WhichOneof(oneof)
    if name is None:
        fields = message.DESCRIPTOR.oneofs_by_name[oneof].fields
        raise InvalidRequestError(oneof, None, "one of " + ", ".join(field.name for field in fields))
    return name


def require_set(message: Message, field: str) -> None:
    if not message.HasField(field):
        raise InvalidRequestError(field, None, "a value")


def checked_name(field: str, value: str) -> str:
    if not value:
        raise InvalidRequestError(field, value, "a non-empty string")
    return value


def checked_worker_id(field: str, value: str) -> str:
    if not _WORKER_ID.fullmatch(value):
        raise InvalidRequestError(field, value, "1 to 128 printable characters")
    return value


def checked_peer_address(field: str, value: str) -> str:
    if not _PEER_ADDRESS.fullmatch(value):
        allowed = "tcp://host:port, with # and a key where it is encrypted, or ipc:// and a path"
        raise InvalidRequestError(field, value, allowed)
    return value


def checked_code(field: str, value: str, codes: type[Code]) -> Code:
    try:
        return codes(value)
    except ValueError:
        raise InvalidRequestError(field, value, "one of " + ", ".join(codes)) from None


def checked_count(field: str, value: int) -> int:
    """Refuse zero."""
    if value < 1:
        raise InvalidRequestError(field, value, "1 or more")
    return value


def checked_number(field: str, value: float) -> float:
    """Refuse what is not finite, or below zero."""
    if not (math.isfinite(value) and value >= 0):
        raise InvalidRequestError(field, value, "a finite number from 0")
    return value


def checked_index(field: str, value: int) -> int:
    """Index of a sequence in its request."""
    if not 0 <= value < MAX_N:
        raise InvalidRequestError(field, value, f"an integer from 0 to {MAX_N - 1}")
    return value


def checked_token_ids(field: str, values: Iterable[int]) -> tuple[int, ...]:
    token_ids = tuple(values)
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < _TOKEN_ID_LIMIT):
        bad = next(token_id for token_id in token_ids if not 0 <= token_id < _TOKEN_ID_LIMIT)
        raise InvalidRequestError(field, bad, f"integers from 0 to {_TOKEN_ID_LIMIT - 1}")
    return token_ids
