"""Bytes as an attacker would send them, and a bound on what reading them may cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
BYTES_PER_BYTE: Final = 200
"""An empty msgpack array is one byte on the wire, and an object of Python."""
SLACK_BYTES: Final = 2**20
_LENGTHS: Final = tuple(
    number.to_bytes(size, order)
    for number in (0, 1, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
    for size in (4, 8)
    if number < 2 ** (8 * size)
    for order in ("big", "little")
)
"""Bytes that lie about how much follows."""
_MARKS: Final = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 2000)
"""Msgpack with huge arrays, maps and byte strings, and with arrays within arrays."""
_junk: Final = st.one_of(st.binary(max_size=40), st.sampled_from(_LENGTHS + _MARKS))


@st.composite
def hostile(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Anything at all, or something valid that was cut, repeated or written over in a few places."""
    if draw(st.integers(0, 7)) == 0:
        return draw(st.binary(max_size=300))
    content = draw(valid)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 16)))
        content = content[:start] + draw(_junk) + content[end:]
    return content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content


def within_memory(read: Callable[[bytes], T], content: bytes, *refusals: type[Exception]) -> T | None:
    """Call `read`; None if it refuses. Other errors, and memory out of proportion, fail the test."""
    result: Any = None
    tracemalloc.start()
    try:
        result = read(content)
    except refusals:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= SLACK_BYTES + BYTES_PER_BYTE * len(content), f"{peak} bytes to read {len(content)}"
    return result
