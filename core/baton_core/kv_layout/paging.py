"""Paging of a sequence's tokens into blocks, for each KV group: arithmetic of workers and routers.

A group with a window needs only the blocks that the next token sees. All counts follow from the number of
tokens, so two workers that know a prompt's length agree on the blocks that have to move.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one block of a prompt in its tables."""

    number: int
    """Position in the tables laid end to end: its name between two workers."""
    group: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Block size, and the window of each KV group in tokens (None sees all)."""

    block_size: int
    windows: tuple[int | None, ...] = (None,)

    def num_entries(self, num_tokens: int) -> int:
        """Length of a block table of `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def first_visible(self, group: int, position: int) -> int:
        """Index of the first block of a group that the token at `position`, or a later one, sees."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that the token after `num_tokens` computed ones needs, all groups together."""
        entries = self.num_entries(num_tokens)
        return sum(entries - self.first_visible(group, num_tokens) for group in range(len(self.windows)))

    def max_blocks(self, num_tokens: int, max_chunk: int) -> int:
        """Most blocks that a sequence of `num_tokens` needs at a time, in chunks of at most `max_chunk`.

        Cached blocks of a prefix count: a window of them lies before the blocks that the sequence fills.
        """
        entries = self.num_entries(num_tokens)
        return sum(
            entries
            if window is None
            else min(entries, self._span(window - 1) + self._ahead(window, max_chunk))
            for window in self.windows
        )

    def max_tokens(self, num_blocks: int, max_chunk: int, limit: int) -> int:
        """Longest sequence, up to `limit` tokens, that a pool of `num_blocks` holds."""
        lengths = range(1, limit + 1)
        return bisect_right(lengths, num_blocks, key=lambda length: self.max_blocks(length, max_chunk))

    def reach_ahead(
        self, num_tokens: int, *, num_cached_tokens: int, num_computed_tokens: int, max_chunk: int
    ) -> tuple[int, ...]:
        """Entries for each group's table of a sequence that must never wait for a block.

        As a block leaves the window the reach grows by one, so the sequence goes on with the blocks that it
        gives back; a cached prefix is not its own to give.
        """
        entries, first = self.num_entries(num_tokens), num_cached_tokens // self.block_size
        return tuple(
            entries
            if window is None
            else min(
                entries,
                max(first, self.first_visible(group, num_computed_tokens)) + self._ahead(window, max_chunk),
            )
            for group, window in enumerate(self.windows)
        )

    def prompt_places(self, num_tokens: int) -> list[Place]:
        """The blocks of a computed prompt that decoding needs, and that one worker pulls from another."""
        entries = self.num_entries(num_tokens)
        return [
            Place(group * entries + index, group, index)
            for group in range(len(self.windows))
            for index in range(self.first_visible(group, num_tokens), entries)
        ]

    def longest_prefix(self, limit: int, has_block: Callable[[int, int], bool]) -> int:
        """Longest prefix, in whole blocks up to `limit`, after which the next token finds all that it sees.

        `has_block(group, index)` says what there is.
        """
        length = limit
        for group, window in enumerate(self.windows):
            if window is None:
                length = next((index for index in range(length) if not has_block(group, index)), length)
        while (missing := self._missing_in_windows(length, has_block)) is not None:
            length = missing  # what is missing is seen after every longer prefix too
        return length

    def _missing_in_windows(self, length: int, has_block: Callable[[int, int], bool]) -> int | None:
        """A block that the token after `length` blocks sees through a window, and that there is not."""
        for group, window in enumerate(self.windows):
            if window is not None:
                for index in range(self.first_visible(group, length * self.block_size), length):
                    if not has_block(group, index):
                        return index
        return None

    def _ahead(self, window: int, max_chunk: int) -> int:
        """Blocks under the tokens that a chunk computes and those that it sees."""
        return self._span(window - 1 + max_chunk)

    def _span(self, num_tokens: int) -> int:
        """Most blocks that so many tokens in a row touch."""
        return (num_tokens + 2 * self.block_size - 2) // self.block_size if num_tokens else 0


NO_BLOCK: Final = -1
"""In a block table: a block that lies before the window and was given back."""
