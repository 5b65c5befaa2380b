"""The frames that processes of a router send each other, each behind its length."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from baton_core.load_reservation import LoadReservation
from baton_core.requests.spending import Spending

FOLLOW: Final = b"follow\n"
"""The first line of a connection that asks for frames; any other line is a question with one answer."""
METRICS: Final = b"metrics"
"""Asks for the page of metrics."""
COUNTS: Final = b"counts"
"""Asks for the counts since the start."""
RECENT: Final = b"recent"
"""Asks for the latencies and the samples of the last minutes, after the time that follows."""
_LENGTH_BYTES: Final = 4


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a process, and what its tenants have spent since its last frame."""

    router_id: str
    session_port: int
    """Port at which workers reach this process and no other."""
    reservations: tuple[LoadReservation, ...] = ()
    spending: tuple[Spending, ...] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    """Write a frame behind its length."""
    data = _encoder.encode(frame)
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read the next frame.

    Raises:
        asyncio.IncompleteReadError: there is none.
        msgspec.MsgspecError: it is of another version.
    """
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
    return _decoder.decode(await reader.readexactly(length))
