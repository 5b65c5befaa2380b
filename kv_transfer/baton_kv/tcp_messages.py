"""What two ends of the TCP transport say to each other: msgpack with a type tag, one frame each.

A puller fetches the blocks of an order and grants the holder a number of chunks; each chunk that arrives
is worth a new grant. Chunks come in order, each followed by a frame with its bytes. A fetch is over with
its last chunk or with `FetchEnded`, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from baton_core.msgpack import decoder_of

MAX_GRANTED: Final = 4
"""Chunks that a holder may have been granted by one puller and not have sent."""

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


class Grant(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take so many more chunks."""

    fetch_id: _Number
    num_chunks: _Grant


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Want no more; answered by `FetchEnded`."""

    fetch_id: _Number


class ChunkSent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The next frame holds this chunk of the order."""

    fetch_id: _Number
    number: _Number


class FetchEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """No more chunks come."""

    fetch_id: _Number
    reason: str


ToHolder = Fetch | Grant | Drop
ToPuller = ChunkSent | FetchEnded

encode = msgspec.msgpack.Encoder().encode
decode_to_holder: Callable[[bytes | memoryview], ToHolder] = decoder_of(ToHolder)
decode_to_puller: Callable[[bytes | memoryview], ToPuller] = decoder_of(ToPuller)


def max_frame_bytes(num_blocks: int) -> int:
    """Of a frame to a holder of so many blocks: room to fetch all of them, at 5 bytes to an id."""
    return 1024 + 5 * num_blocks
