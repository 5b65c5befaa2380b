"""A queue of messages from one rank to others of its machine, in memory that they share."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from struct import Struct
from typing import Final

from baton_kernels.cpu.collective_structs import AwaitTurnArgs, SetTurnArgs
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.interface.collectives import RankLostError

NUM_SLOTS: Final = 32
SLOT_BYTES: Final = 64 << 10
_LINE: Final = 64
_LENGTH: Final = Struct("<Q")
_LONGEST_SLEEP_NS: Final = 20_000_000


def queue_bytes(size: int) -> int:
    """Return how much zeroed memory a queue for ranks below `size` takes."""
    return _LINE * (1 + size) + NUM_SLOTS * SLOT_BYTES


class SharedQueue:
    """One rank's end of a queue whose memory begins at `offset` of a shared mapping, zeroed at the start.

    Each reader takes every message, in order. The memory holds a line for the end of the queue, a counter for
    each rank and a ring of slots. A message is its length and its bytes, cut into slots.

    Args:
        rank: the one at this end, below `size`.
        writer: the rank that puts.
        readers: the ranks that take.
    """

    def __init__(
        self,
        library: CpuLibrary,
        memory: mmap.mmap,
        offset: int,
        size: int,
        *,
        rank: int,
        writer: int,
        readers: Sequence[int],
    ) -> None:
        self.readers = tuple(readers)
        self._rank = rank
        self._writer = writer
        self._library = library
        self._memory = memory
        self._offset = offset
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        self._slots = offset + _LINE * (1 + size)
        self._turn = 0
        """Slots that this end has written or read."""

    def put(self, content: bytes, within_s: float) -> None:
        """Hand a message to all readers; waits while one of them is a whole ring behind.

        Raises:
            RankLostError: a reader does not read within this time, or the queue has ended.
        """
        content = _LENGTH.pack(len(content)) + content
        for start in range(0, len(content), SLOT_BYTES):
            piece = content[start : start + SLOT_BYTES]
            turn = self._turn + 1
            for reader in self.readers:
                if not self._has_come(reader, turn - NUM_SLOTS, within_s):
                    text = f"it has not read within {within_s:g} s, or its group has ended"
                    raise RankLostError(reader, text)
            at = self._slot(turn)
            self._memory[at : at + len(piece)] = piece
            self._set(turn)

    def take(self, within_s: float) -> bytes | None:
        """Wait for the next message; None if none has come within this time, or the queue has ended.

        Raises:
            RankLostError: the rest of a message does not come.
        """
        if not self._has_come(self._writer, self._turn + 1, within_s):
            return None
        at = self._slot(self._turn + 1)
        start = at + _LENGTH.size
        left, *_ = _LENGTH.unpack(self._memory[at:start])
        pieces: list[bytes] = []
        while True:
            piece = self._memory[start : min(start + left, at + SLOT_BYTES)]
            self._set(self._turn + 1)
            pieces.append(piece)
            left -= len(piece)
            if not left:
                return b"".join(pieces)
            if not self._has_come(self._writer, self._turn + 1, within_s):
                text = f"it has begun a message and not ended it in {within_s:g} s"
                raise RankLostError(self._writer, text)
            start = at = self._slot(self._turn + 1)

    @property
    def has_ended(self) -> bool:
        return bool(self._memory[self._offset])

    def end(self) -> None:
        """End all waits, now and later."""
        self._memory[self._offset] = 1

    def _slot(self, turn: int) -> int:
        return self._slots + turn % NUM_SLOTS * SLOT_BYTES

    def _flag(self, rank: int) -> int:
        return self._base + _LINE * (1 + rank)

    def _has_come(self, rank: int, turn: int, within_s: float) -> bool:
        args = AwaitTurnArgs(
            aborted=self._base,
            flag=self._flag(rank),
            turn=turn,
            deadline_ns=int(within_s * 1e9),
            longest_sleep_ns=_LONGEST_SLEEP_NS,
        )
        try:
            self._library.run(args)
        except TimeoutError:
            return False
        return True

    def _set(self, turn: int) -> None:
        self._turn = turn
        self._library.run(SetTurnArgs(flag=self._flag(self._rank), turn=turn))
