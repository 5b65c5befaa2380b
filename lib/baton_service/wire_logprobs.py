"""Log-probabilities as protobuf, and the reports that they make too large for one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isnan
from typing import Final, TypeVar

from baton_core.errors import InvalidRequestError
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import PromptLogprobs, SequenceOutput
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire_checks import MAX_REPORT_BYTES, checked_count, checked_name, checked_token_ids

_ENTRY_BYTES: Final = 14
"""At most, of a token, its log-probability and its rank."""
_OVERHEAD_BYTES: Final = 32
"""At most, of a position, besides."""

Part = TypeVar("Part")


def encode_logprobs(positions: Iterable[PositionLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(token_ids=one.token_ids, logprobs=one.logprobs, ranks=one.ranks) for one in positions
    ]


def decode_logprobs(field: str, positions: Iterable[pb.TokenLogprobs]) -> tuple[PositionLogprobs, ...]:
    """Read positions.

    Raises:
        InvalidRequestError: one is empty, its lists are not equally long, or it has no numbers.
    """
    return tuple(_decode_position(field, position) for position in positions)


def encode_prompt_logprobs(message: PromptLogprobs) -> pb.PromptLogprobs:
    entries = encode_logprobs(message.entries)
    return pb.PromptLogprobs(request_id=message.request_id, start=message.start, entries=entries)


def decode_prompt_logprobs(message: pb.PromptLogprobs) -> PromptLogprobs:
    """Read those of a chunk.

    Raises:
        InvalidRequestError: a field is missing or out of range.
    """
    return PromptLogprobs(
        request_id=checked_name("request_id", message.request_id),
        start=checked_count("start", message.start),
        entries=decode_logprobs("entries", message.entries),
    )


def split_outputs(outputs: tuple[SequenceOutput, ...]) -> Iterator[tuple[SequenceOutput, ...]]:
    """Cut into runs that each fit one message."""
    return _cut(outputs, [sum(map(_num_bytes, output.logprobs)) for output in outputs])


def split_prompt_logprobs(message: PromptLogprobs) -> Iterator[PromptLogprobs]:
    """Cut into consecutive ones that each fit one message."""
    start = message.start
    for entries in _cut(message.entries, [_num_bytes(entry) for entry in message.entries]):
        yield replace(message, start=start, entries=entries)
        start += len(entries)


def _decode_position(field: str, position: pb.TokenLogprobs) -> PositionLogprobs:
    lengths = {len(position.token_ids), len(position.logprobs), len(position.ranks)}
    if len(lengths) > 1 or 0 in lengths:
        raise InvalidRequestError(field, sorted(lengths), "lists of one length, 1 or more")
    logprobs = tuple(position.logprobs)
    if isnan(sum(logprobs)):
        raise InvalidRequestError(field, float("nan"), "logarithms of probabilities")
    return PositionLogprobs(
        token_ids=checked_token_ids(field, position.token_ids),
        logprobs=logprobs,
        ranks=tuple(position.ranks),
    )


def _num_bytes(position: PositionLogprobs) -> int:
    return _OVERHEAD_BYTES + _ENTRY_BYTES * len(position.token_ids)


def _cut(parts: tuple[Part, ...], sizes: Sequence[int]) -> Iterator[tuple[Part, ...]]:
    """Runs of parts whose sizes add up to three quarters of a message, or single parts."""
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if total + size > 3 * MAX_REPORT_BYTES // 4 and number > start:
            yield parts[start:number]
            start, total = number, 0
        total += size
    yield parts[start:]
