"""Reading msgpack that others wrote: one error for whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def decoder_of(kind: type[T] | Any) -> Callable[[bytes | memoryview], T]:
    """Return a function that reads one value of a type, or of a union of types.

    What it reads takes memory in proportion to its bytes, whatever lengths these name. It raises
    msgspec.DecodeError, also for text that is no UTF-8 and for what is nested too deeply.
    """
    decoder = msgspec.msgpack.Decoder(kind)

    def decode(content: bytes | memoryview) -> T:
        try:
            value: T = decoder.decode(content)
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"text that is no UTF-8 ({error.reason})") from None
        except RecursionError:
            raise msgspec.DecodeError("nested too deeply") from None
        return value

    return decode
