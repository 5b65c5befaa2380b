"""The formats in which traces of requests are published: Mooncake's and Azure's.

A line of Mooncake's has `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids`: one for
each 512 tokens of the prompt, the last one for what is left; equal ids mean an equal prefix. Azure's is a CSV
of `TIMESTAMP,ContextTokens,GeneratedTokens`: its prompts are taken to share nothing.

Source: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces;
https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import Annotated, Final

import msgspec

from baton_core.errors import InvalidConfigError

ID_TOKENS: Final = 512
"""Tokens of the trace that one of its ids stands for."""
MAX_ID: Final = 2**31 - 2
_MOST: Final = 2**31 - 1
_AZURE: Final = b"TIMESTAMP,ContextTokens,GeneratedTokens"
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class TraceRequest(msgspec.Struct, frozen=True):
    timestamp: _Count
    input_length: _Length
    output_length: _Count
    hash_ids: list[_Id]


def read_requests(lines: Iterable[bytes], name: str) -> Iterator[TraceRequest]:
    """The requests of a file, in the format that its first line shows; `name` is what errors call it.

    Raises:
        InvalidConfigError: a line is no request of this format, its ids do not cover its prompt, or it comes
            before the line above it.
    """
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return
    first = first.removeprefix(BOM_UTF8)
    is_azure = first.strip() == _AZURE
    requests = _read_azure(rest, name) if is_azure else _read_mooncake(chain((first,), rest), name)
    last_ms = 0
    for number, request in requests:
        if request.timestamp < last_ms:
            raise InvalidConfigError(
                f"line {number} of {name} has timestamp {request.timestamp}; allowed: from {last_ms}, "
                "that of the line above"
            )
        last_ms = request.timestamp
        yield request


def _read_mooncake(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, TraceRequest]]:
    for number, line in _numbered(lines, 1):
        try:
            request = msgspec.json.decode(line, type=TraceRequest)
        except msgspec.DecodeError as error:
            raise InvalidConfigError(f"line {number} of {name} is no request of a trace: {error}") from None
        if len(request.hash_ids) != _num_ids(request.input_length):
            raise InvalidConfigError(
                f"line {number} of {name} has {len(request.hash_ids)} hash_ids for {request.input_length} "
                f"tokens; allowed: one for each {ID_TOKENS} tokens begun"
            )
        yield number, request


def _read_azure(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, TraceRequest]]:
    began: datetime | None = None
    num_ids = 0
    for number, line in _numbered(lines, 2):
        try:
            stamp, context, generated = line.decode().split(",")
            at, input_length, output_length = datetime.fromisoformat(stamp), int(context), int(generated)
            began = began or at
            at_ms = (at - began) // timedelta(milliseconds=1)
        except (ValueError, TypeError) as error:
            raise InvalidConfigError(f"line {number} of {name} is no request of a trace: {error}") from None
        if not (1 <= input_length <= _MOST and 0 <= output_length <= _MOST):
            raise InvalidConfigError(
                f"line {number} of {name} has {input_length} and {output_length} tokens; allowed: from 1 "
                f"and from 0, to {_MOST}"
            )
        ids = range(num_ids, num_ids + _num_ids(input_length))
        num_ids = ids.stop
        yield number, TraceRequest(at_ms, input_length, output_length, list(ids))


def _numbered(lines: Iterable[bytes], start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers in the file."""
    return ((number, line) for number, line in enumerate(lines, start) if line.strip())


def _num_ids(input_length: int) -> int:
    return -(-input_length // ID_TOKENS)
