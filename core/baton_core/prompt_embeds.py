"""Embeddings in the place of tokens of a prompt: rows of numbers that a client computed itself.

Token ids of a prompt have `PLACEHOLDER` at such positions. Rows take part in block hashes by their digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Self

from baton_core.errors import InvalidRequestError

PLACEHOLDER: Final = 0
"""The token id at a position that has an embedding; it says nothing."""
ITEM_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number, by the names of the dtypes that embeddings may have."""
MAX_EMBEDS_BYTES: Final = 128 * 2**20
"""Largest size of the embeddings of one request."""
DIGEST_BYTES: Final = 16
_FIELD: Final = "prompt_embeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEmbeds:
    """Embeddings of consecutive tokens.

    `data` holds `[num_tokens, hidden_size]` numbers of `dtype`, row-major and little-endian; `digests` holds
    one digest for each row. `of` makes them from the data.

    Raises:
        InvalidRequestError: a dtype that is none of `ITEM_BYTES`, or sizes that do not fit together.
    """

    start: int = 0
    """Position of the first row."""
    hidden_size: int
    dtype: str
    data: bytes = field(repr=False)
    digests: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_sizes(self.dtype, self.hidden_size, len(self.data))
        if len(self.digests) != DIGEST_BYTES * self.num_tokens:
            allowed = f"{DIGEST_BYTES} for each of {self.num_tokens} rows"
            raise InvalidRequestError(f"{_FIELD}.digests", f"{len(self.digests)} bytes", allowed)

    @classmethod
    def of(cls, data: bytes, *, dtype: str, hidden_size: int, start: int = 0) -> Self:
        """Return embeddings of checked numbers.

        Raises:
            InvalidRequestError: as the class does, or a number is NaN or infinite; the message has its row.
        """
        check_sizes(dtype, hidden_size, len(data))
        row_bytes = hidden_size * ITEM_BYTES[dtype]
        if (number := _first_non_finite(data, dtype)) is not None:
            value = f"NaN or infinite in row {number // hidden_size}"
            raise InvalidRequestError(_FIELD, value, "finite numbers")
        person = dtype.encode()
        digests = b"".join(
            blake2b(data[row : row + row_bytes], digest_size=DIGEST_BYTES, person=person).digest()
            for row in range(0, len(data), row_bytes)
        )
        return cls(start=start, hidden_size=hidden_size, dtype=dtype, data=data, digests=digests)

    @property
    def row_bytes(self) -> int:
        return self.hidden_size * ITEM_BYTES[self.dtype]

    @property
    def num_tokens(self) -> int:
        return len(self.data) // self.row_bytes

    @property
    def end(self) -> int:
        """The position behind the last row."""
        return self.start + self.num_tokens

    def between(self, start: int, end: int) -> PromptEmbeds | None:
        """Return the rows at positions from `start` to `end`, counted from `start`; None without any."""
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return None
        rows = slice(first - self.start, last - self.start)
        return PromptEmbeds(
            start=first - start,
            hidden_size=self.hidden_size,
            dtype=self.dtype,
            data=self.data[rows.start * self.row_bytes : rows.stop * self.row_bytes],
            digests=self.digests[rows.start * DIGEST_BYTES : rows.stop * DIGEST_BYTES],
        )


def check_sizes(dtype: str, hidden_size: int, num_bytes: int) -> None:
    """Refuse embeddings by their dtype and sizes, before any of their data is read.

    Raises:
        InvalidRequestError: naming what is wrong.
    """
    if dtype not in ITEM_BYTES:
        raise InvalidRequestError(f"{_FIELD}.dtype", dtype, ", ".join(ITEM_BYTES))
    if hidden_size < 1:
        raise InvalidRequestError(f"{_FIELD}.hidden_size", hidden_size, "the model's, 1 or more")
    row_bytes = hidden_size * ITEM_BYTES[dtype]
    if not num_bytes or num_bytes % row_bytes or num_bytes > MAX_EMBEDS_BYTES:
        allowed = f"rows of {row_bytes} bytes, at least one and at most {MAX_EMBEDS_BYTES} bytes in all"
        raise InvalidRequestError(_FIELD, f"{num_bytes} bytes", allowed)


def check_places(embeds: Sequence[PromptEmbeds], num_prompt_tokens: int) -> None:
    """Refuse embeddings that are not one behind the other within their prompt, or too large together.

    Raises:
        InvalidRequestError: naming the first that is out of place.
    """
    end = 0
    for one in embeds:
        if not end <= one.start <= one.end <= num_prompt_tokens:
            value = f"{one.num_tokens} from position {one.start} on"
            allowed = f"those of positions {end} to {num_prompt_tokens - 1}, in order"
            raise InvalidRequestError(_FIELD, value, allowed)
        end = one.end
    if (num_bytes := sum(len(one.data) for one in embeds)) > MAX_EMBEDS_BYTES:
        raise InvalidRequestError(_FIELD, f"{num_bytes} bytes", f"at most {MAX_EMBEDS_BYTES} in all")


def between(embeds: Iterable[PromptEmbeds], start: int, end: int) -> tuple[PromptEmbeds, ...]:
    """Return the rows at positions from `start` to `end`, counted from `start`."""
    return tuple(part for one in embeds if (part := one.between(start, end)) is not None)


def known_tokens(token_ids: tuple[int, ...], embeds: Iterable[PromptEmbeds]) -> tuple[int, ...]:
    """Return a prompt's tokens without the placeholders."""
    known, end = token_ids[:0], 0
    for one in embeds:
        known, end = known + token_ids[end : one.start], one.end
    return known + token_ids[end:] if end else token_ids


def digest_between(embeds: Iterable[PromptEmbeds], start: int, end: int) -> bytes:
    """Return a digest of the rows between two positions, and of their places; b"" without any."""
    parts = [
        first.to_bytes(4, "little")
        + one.digests[(first - one.start) * DIGEST_BYTES : (last - one.start) * DIGEST_BYTES]
        for one in embeds
        if (first := max(start, one.start)) < (last := min(end, one.end))
    ]
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest() if parts else b""


def _first_non_finite(data: bytes, dtype: str) -> int | None:
    """Return the number of the first NaN or infinity; None where all are finite.

    Such numbers have an exponent of ones alone: they are looked for in many bytes at once.
    """
    size = ITEM_BYTES[dtype]
    for start in range(0, len(data), _MANY_BYTES):
        part = data[start : start + _MANY_BYTES]
        high = part[size - 1 :: size]
        if dtype == "float16":
            found = int.from_bytes(high.translate(_ALL_ONES_OF_FIVE), "little")
        else:
            found = int.from_bytes(high.translate(_ALL_ONES_OF_SEVEN), "little")
            found &= int.from_bytes(part[size - 2 :: size].translate(_TOP_BIT), "little")
        if found:
            return start // size + (found & -found).bit_length() // 8
    return None


_MANY_BYTES: Final = 2**16
_ALL_ONES_OF_FIVE: Final = bytes(byte & 0x7C == 0x7C for byte in range(256))
_ALL_ONES_OF_SEVEN: Final = bytes(byte & 0x7F == 0x7F for byte in range(256))
_TOP_BIT: Final = bytes(byte >= 0x80 for byte in range(256))
