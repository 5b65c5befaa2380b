"""The messages between two ends of the TCP transport: msgpack with a type tag, one frame each.

A consumer fetches the blocks of a pull and grants the producer a number of chunks; each chunk that arrives
is worth a new grant. Chunks come in order, each followed by a frame with its bytes. A fetch is over with
its last chunk or with `FetchEnded`, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from baton_core.msgpack import decoder_of

MAX_GRANTED: Final = 4
"""Chunks that a producer may have been granted by one consumer and not have sent."""

MAX_RANGES: Final = 2048
"""Parts of a block that a fetch may name."""
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Grant = Annotated[int, msgspec.Meta(ge=1, le=MAX_GRANTED)]


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Ask for blocks of the pool of an epoch."""

    fetch_id: _Number
    """Never used twice on a connection."""
    token: str
    """From the pool's description: who does not know it gets nothing."""
    epoch: int
    block_ids: tuple[int, ...]
    num_chunks: _Grant
    """The first grant."""
    ranges: tuple[tuple[_Number, _Number], ...] = ()
    """First byte and end of what is wanted of each block, ascending; none stands for all of it."""


class Grant(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take so many more chunks."""

    fetch_id: _Number
    num_chunks: _Grant


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Want no more; answered by `FetchEnded`."""

    fetch_id: _Number


class ChunkSent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The next frame holds this chunk of the pull."""

    fetch_id: _Number
    number: _Number


class FetchEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """No more chunks come."""

    fetch_id: _Number
    reason: str


ToProducer = Fetch | Grant | Drop
ToConsumer = ChunkSent | FetchEnded

encode = msgspec.msgpack.Encoder().encode
decode_to_producer: Callable[[bytes | memoryview], ToProducer] = decoder_of(ToProducer)
decode_to_consumer: Callable[[bytes | memoryview], ToConsumer] = decoder_of(ToConsumer)


def max_frame_bytes(num_blocks: int) -> int:
    """Limit of a frame to a producer of `num_blocks`: room to fetch all of them, at 5 bytes to a number."""
    return 1024 + 5 * num_blocks + 11 * MAX_RANGES
