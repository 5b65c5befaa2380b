"""Exchanges between ranks of one machine through memory that they share, by the C++ kernels."""

from __future__ import annotations

import ctypes
import mmap
from ctypes import c_int64
from typing import Final

import torch
from torch import Tensor

from baton_kernels.cpu.collective_structs import ExchangeArgs, Meeting, ReceiveArgs, SendArgs
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.interface.collectives import Collectives, RankLostError

SLOT_BYTES: Final = 256 << 10
_LINE: Final = 64
_EVERYBODY: Final = -1
_SUMMED: Final = (torch.float32, torch.bfloat16)


def shared_bytes(size: int) -> int:
    """Return how much zeroed memory the ranks of a group of `size` share."""
    return _mail_start(size) + size * size * _mail_bytes()


def _mail_start(size: int) -> int:
    return _LINE * (1 + size) + 2 * size * SLOT_BYTES


def _mail_bytes() -> int:
    return 2 * _LINE + 2 * SLOT_BYTES


def abort(memory: mmap.mmap, offset: int) -> None:
    """End all waits of a group, now and later: one of its ranks is lost."""
    memory[offset : offset + 8] = (1).to_bytes(8, "little")


class SharedCollectives(Collectives):
    """The exchanges of a group whose memory begins at `offset` of a shared mapping, zeroed at the start.

    The memory holds a line for the end of the group, a counter for each rank, their slots, and for each pair
    of ranks two counters and two slots.
    """

    is_capturable = True

    def __init__(
        self,
        library: CpuLibrary,
        memory: mmap.mmap,
        offset: int,
        rank: int,
        size: int,
        *,
        deadline_s: float,
    ) -> None:
        self.rank = rank
        self.size = size
        self._library = library
        self._memory = memory
        self._deadline_s = deadline_s
        self._lost = c_int64(-1)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        self._turns: list[c_int64] = []
        flags = self._base + _LINE
        self._group = self._meeting(flags, flags + size * _LINE)
        self._mails: dict[tuple[int, int], Meeting] = {}

    def all_reduce(self, x: Tensor) -> Tensor:
        if x.dtype not in _SUMMED:
            return self._exchange(x).sum(0, dtype=torch.float32).to(x.dtype)
        x = x.contiguous()
        self._run(x, x, is_sum=True)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return self._exchange(x)

    def gather(self, x: Tensor, to: int) -> Tensor | None:
        gathered = self._exchange(x, reader=to)
        return gathered if self.rank == to else None

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        x = x.contiguous()
        result = x if self.rank == source else torch.empty_like(x)
        self._run(x, result, writer=source)
        return result

    def send(self, x: Tensor, to: int) -> None:
        x = x.contiguous()
        args = SendArgs(meeting=self._mail(self.rank, to), source=x.data_ptr(), num_bytes=x.nbytes, peer=to)
        self._call(args)

    def receive(self, x: Tensor, source: int) -> Tensor:
        assert x.is_contiguous()
        args = ReceiveArgs(
            meeting=self._mail(source, self.rank), target=x.data_ptr(), num_bytes=x.nbytes, peer=source
        )
        self._call(args)
        return x

    def _exchange(self, x: Tensor, reader: int = _EVERYBODY) -> Tensor:
        x = x.contiguous()
        is_reading = reader in (_EVERYBODY, self.rank)
        gathered = torch.empty((self.size if is_reading else 0, *x.shape), dtype=x.dtype)
        self._run(x, gathered, reader=reader)
        return gathered

    def _run(
        self,
        source: Tensor,
        target: Tensor,
        *,
        writer: int = _EVERYBODY,
        reader: int = _EVERYBODY,
        is_sum: bool = False,
    ) -> None:
        args = ExchangeArgs(
            meeting=self._group,
            source=source.data_ptr(),
            target=target.data_ptr(),
            num_bytes=source.nbytes,
            rank=self.rank,
            size=self.size,
            writer=writer,
            reader=reader,
            is_sum=is_sum,
            is_bfloat16=source.dtype == torch.bfloat16,
        )
        self._call(args)

    def _call(self, args: ctypes.Structure) -> None:
        try:
            self._library.run(args)
        except TimeoutError:
            reason = f"it has not come within {self._deadline_s:g} s, or its group has ended"
            raise RankLostError(self._lost.value, reason) from None

    def _mail(self, source: int, to: int) -> Meeting:
        """Return where one rank leaves bytes for another."""
        if (source, to) not in self._mails:
            start = self._base + _mail_start(self.size) + (source * self.size + to) * _mail_bytes()
            self._mails[source, to] = self._meeting(start, start + 2 * _LINE)
        return self._mails[source, to]

    def _meeting(self, flags: int, slots: int) -> Meeting:
        turn = c_int64(0)
        self._turns.append(turn)
        return Meeting(
            aborted=self._base,
            flags=flags,
            slots=slots,
            slot_bytes=SLOT_BYTES,
            turn=ctypes.addressof(turn),
            deadline_ns=int(self._deadline_s * 1e9),
            lost=ctypes.addressof(self._lost),
        )
