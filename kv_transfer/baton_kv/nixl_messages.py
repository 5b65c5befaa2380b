"""The messages between two ends of the NIXL transport: where a pool is, and when it is being read."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec

from baton_core.msgpack import decoder_of
from baton_kv.connector import ProducerUnreachableError

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class PoolAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a producer's pool, as agents of NIXL find it."""

    metadata: bytes
    """Metadata of the agent that serves it."""
    memory: Literal["DRAM", "VRAM"]
    device: _Number
    base: _Number
    """Address of the first block in the producer's memory."""

    def encode(self) -> str:
        return binascii.b2a_base64(msgspec.msgpack.encode(self), newline=False).decode()


class ReadingBegan(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From now on blocks are being read."""

    number: _Number
    """1 for the first time of an agent, then counting: a message may come late, or twice."""


class ReadingEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """No more, for now."""

    number: _Number


Notice = ReadingBegan | ReadingEnded

encode_notice: Final = msgspec.msgpack.Encoder().encode
decode_notice: Final[Callable[[bytes], Notice]] = decoder_of(Notice)
_decode_address: Final[Callable[[bytes], PoolAddress]] = decoder_of(PoolAddress)


def decode_address(address: str) -> PoolAddress:
    """Read an address of a description.

    Raises:
        ProducerUnreachableError: that is none.
    """
    try:
        return _decode_address(binascii.a2b_base64(address))
    except (ValueError, msgspec.MsgspecError) as error:
        raise ProducerUnreachableError("address", address, f"that of a pool of NIXL ({error})") from None
