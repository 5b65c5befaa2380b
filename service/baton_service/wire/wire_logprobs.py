"""Log-probabilities as protobuf, and the reports that they make too long for one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import isnan
from typing import Final, TypeVar

from baton_core.errors import InvalidRequestError
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.packed_logprobs import PackedLogprobs
from baton_core.sessions.router_messages import PromptLogprobs, SequenceOutput
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_checks import checked_count, checked_name, checked_token_ids

_ENTRY_BYTES: Final = 14
"""At most, of a token, its log-probability and its rank."""
_OVERHEAD_BYTES: Final = 32
"""At most, of a position, besides."""
_PART_BYTES: Final = 2**14
"""Size of each part of a split report: other requests wait while a router reads a message."""

Part = TypeVar("Part")


def encode_logprobs(positions: Iterable[PositionLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(token_ids=one.token_ids, logprobs=one.logprobs, ranks=one.ranks) for one in positions
    ]


def decode_logprobs(positions: Iterable[pb.TokenLogprobs]) -> tuple[PositionLogprobs, ...]:
    """Read positions.

    Raises:
        InvalidRequestError: one is empty, its lists are not equally long, or it has no numbers.
    """
    return tuple(map(_decode_position, positions))


def encode_prompt_logprobs(message: PromptLogprobs) -> pb.PromptLogprobs:
    entries = message.entries
    return pb.PromptLogprobs(
        request_id=message.request_id,
        start=message.start,
        lengths=[len(one.token_ids) for one in entries],
        token_ids=chain.from_iterable(one.token_ids for one in entries),
        logprobs=chain.from_iterable(one.logprobs for one in entries),
        ranks=chain.from_iterable(one.ranks for one in entries),
    )


def decode_prompt_logprobs(message: pb.PromptLogprobs) -> PromptLogprobs:
    """Read the log-probabilities of a chunk of a prompt, without an object for each position.

    Raises:
        InvalidRequestError: a field is missing or out of range.
    """
    try:
        entries = PackedLogprobs.from_lists(
            message.lengths, message.token_ids, message.logprobs, message.ranks
        )
    except ValueError as error:
        raise InvalidRequestError("entries", f"{len(message.lengths)} positions", str(error)) from None
    checked_token_ids("entries", (entries.max_token_id,) if entries else ())
    return PromptLogprobs(
        request_id=checked_name("request_id", message.request_id),
        start=checked_count("start", message.start),
        entries=entries,
    )


def split_outputs(outputs: tuple[SequenceOutput, ...]) -> Iterator[tuple[SequenceOutput, ...]]:
    """Cut into runs that each fit one message."""
    sizes = [sum(map(_num_bytes, output.logprobs)) for output in outputs]
    return map(tuple, _cut(outputs, sizes))


def split_prompt_logprobs(message: PromptLogprobs) -> Iterator[PromptLogprobs]:
    """Cut into consecutive ones that each fit one message."""
    start = message.start
    for entries in _cut(message.entries, [_num_bytes(entry) for entry in message.entries]):
        yield replace(message, start=start, entries=entries)
        start += len(entries)


def _decode_position(position: pb.TokenLogprobs) -> PositionLogprobs:
    lengths = {len(position.token_ids), len(position.logprobs), len(position.ranks)}
    if len(lengths) > 1 or 0 in lengths:
        raise InvalidRequestError("logprobs", sorted(lengths), "lists of one length, 1 or more")
    logprobs = tuple(position.logprobs)
    if isnan(sum(logprobs)):
        raise InvalidRequestError("logprobs", float("nan"), "logarithms of probabilities")
    return PositionLogprobs(
        token_ids=checked_token_ids("logprobs", position.token_ids),
        logprobs=logprobs,
        ranks=tuple(position.ranks),
    )


def _num_bytes(position: PositionLogprobs) -> int:
    return _OVERHEAD_BYTES + _ENTRY_BYTES * len(position.token_ids)


def _cut(parts: Sequence[Part], sizes: Sequence[int]) -> Iterator[Sequence[Part]]:
    """Runs of parts whose sizes add up to `_PART_BYTES`, or single parts."""
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if total + size > _PART_BYTES and number > start:
            yield parts[start:number]
            start, total = number, 0
        total += size
    yield parts[start:]
