"""A memory of slots, which holds what each token's KV depends on."""

from __future__ import annotations

from typing import Any

from tests.builders import BLOCK_SIZE


class Memory:
    """Slots that hold what a token's KV depends on: its group and every token up to its own."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], int] = {}

    def write(self, block_ids: Any, position: int, content: int) -> None:
        self._slots[block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE] = content

    def read(self, block_ids: Any, position: int) -> int | None:
        return self._slots.get((block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE))

    def copy(self, pairs: tuple[tuple[int, int], ...]) -> None:
        copied = {
            (target, slot): self._slots[source, slot]
            for source, target in pairs
            for slot in range(BLOCK_SIZE)
            if (source, slot) in self._slots
        }
        self._slots.update(copied)


def content(group: int, token_ids: list[int], position: int) -> int:
    return hash((group, *token_ids[: position + 1]))
