"""The inputs of decode steps at fixed addresses, for kernels that are captured once and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.step_plan import SequenceSlice
from baton_engine.adapters.adapter_bank import NO_SLOT, AdapterBank
from baton_kernels.interface.kernels import AttentionBatch

PADDING_SLOT: Final = -1


class DecodeInputs:
    """One device buffer with room for `max_num_seqs` sequences of up to `max_model_len` tokens.

    It holds, one after the other: token ids, positions and each KV group's slots (int64), context lengths
    and block tables (int32). Tables come last, by sequence, so that a step of few sequences copies little.
    It starts as padding alone: slot -1, context length 0.
    """

    def __init__(
        self,
        spec: KVSpec,
        max_num_seqs: int,
        max_model_len: int,
        device: torch.device | str = "cpu",
        adapters: AdapterBank | None = None,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self._spec = spec
        self._max_model_len = max_model_len
        self.adapters = adapters
        """None where steps with adapters are not captured."""
        num_groups, width = len(spec.groups), -(-max_model_len // spec.block_size)
        self._integers_shape = (2 + num_groups, max_num_seqs)
        self._tables_shape = (max_num_seqs, num_groups, width)
        # Rounded up, so that the tables begin at a multiple of 16 bytes.
        self._lens_start = -(-8 * (2 + num_groups) * max_num_seqs // 16) * 16
        self._tables_start = self._lens_start + -(-4 * max_num_seqs // 16) * 16
        self._buffer = torch.zeros(self._num_bytes(max_num_seqs), dtype=torch.uint8, device=device)
        integers = self._view(0, self._integers_shape, torch.int64)
        integers[2:] = PADDING_SLOT
        self.token_ids = integers[0]
        """`[max_num_seqs] int64`."""
        self._positions, self._slots = integers[1], integers[2:]
        self._seq_lens = self._view(self._lens_start, (max_num_seqs,), torch.int32)
        self._tables = self._view(self._tables_start, self._tables_shape, torch.int32)
        self._columns = np.arange(width)
        self._on_host = None if self._buffer.is_cuda else self._arrays(self._buffer)
        """The buffer itself, where the host can write it."""
        self._query_start = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self._adapter_slots = torch.full((max_num_seqs,), NO_SLOT, dtype=torch.int32, device=device)

    def takes(self, slices: Sequence[SequenceSlice]) -> bool:
        """Say whether a step may be replayed: one token of each sequence, no embeddings, and not too many."""
        return len(slices) <= self.max_num_seqs and all(
            piece.num_scheduled_tokens == 1
            and not piece.embeds
            and not (piece.adapter and self.adapters is None)
            for piece in slices
        )

    def batches(self, size: int) -> list[AttentionBatch]:
        """Views of the first `size` places, one per KV group; their host-side contexts are the longest."""
        return [
            AttentionBatch(
                positions=self._positions[:size],
                slot_mapping=self._slots[index, :size],
                query_start=self._query_start[: size + 1],
                seq_lens=self._seq_lens[:size],
                block_tables=self._tables[:size, index],
                query_lens=(1,) * size,
                context_lens=(self._max_model_len,) * size,
                window=group.window,
            )
            for index, group in enumerate(self._spec.groups)
        ]

    def fill(self, slices: Sequence[SequenceSlice], size: int, sampled: Tensor | None = None) -> None:
        """Put slices of one token each, and their adapters, into the first places, and padding up to `size`.

        On a GPU it is one copy from pinned memory, in stream order, which stays alive until it is done. Where
        the slices' tokens are not known yet, `sampled` `[num_slices] int64` holds them on the device.
        """
        if self._on_host is not None:
            self._put(self._on_host, slices, size)
        else:
            host = torch.empty(self._num_bytes(size), dtype=torch.uint8, pin_memory=True)
            self._put(self._arrays(host), slices, size)
            self._buffer[: len(host)].copy_(host, non_blocking=True)
        if sampled is not None:
            self.token_ids[: len(sampled)] = sampled
        if self.adapters is not None and any(piece.adapter for piece in slices):
            slots = [self.adapters.slot(piece.adapter) for piece in slices]
            slots += [NO_SLOT] * (size - len(slots))
            host = torch.tensor(slots, dtype=torch.int32, pin_memory=self._buffer.is_cuda)
            self._adapter_slots[:size].copy_(host, non_blocking=True)

    def advance(self, token_ids: Tensor) -> None:
        """Go on to the tokens behind those of the first places, `[num_seqs] int64`, in memory of the host.

        Their blocks are in the tables already; a `Refusal` counts as token 0.
        """
        assert self._on_host is not None, "the host writes the inputs"
        host, block_size = self._on_host, self._spec.block_size
        for place, token_id in enumerate(token_ids.tolist()):  # for a few numbers NumPy is slower
            position = int(host.integers[1, place]) + 1
            block, offset = divmod(position, block_size)
            host.integers[0, place], host.integers[1, place] = max(0, token_id), position
            host.seq_lens[place] = position + 1
            for group in range(len(self._spec.groups)):
                host.integers[2 + group, place] = int(host.tables[place, group, block]) * block_size + offset

    def adapting(self, size: int, *, has_adapters: bool) -> AbstractContextManager[None]:
        """Have layers add the deltas of the adapters of the first `size` sequences, if some have one."""
        if self.adapters is None or not has_adapters:
            return nullcontext()
        return self.adapters.reading(self._adapter_slots[:size])

    def _put(self, host: _Arrays, slices: Sequence[SequenceSlice], size: int) -> None:
        num_seqs, block_size = len(slices), self._spec.block_size
        starts = [piece.start for piece in slices]
        host.integers[:2, :num_seqs] = [piece.token_ids[0] for piece in slices], starts
        host.integers[:2, num_seqs:] = 0
        host.integers[2:, num_seqs:] = PADDING_SLOT
        host.seq_lens[:num_seqs] = [start + 1 for start in starts]
        host.seq_lens[num_seqs:] = 0
        host.tables[num_seqs:size] = 0
        for group in range(len(self._spec.groups)):
            tables = [piece.block_tables[group] for piece in slices]
            host.integers[2 + group, :num_seqs] = [
                table[start // block_size] * block_size + start % block_size
                for table, start in zip(tables, starts, strict=True)
            ]
            lengths = np.fromiter(map(len, tables), np.int64, num_seqs)
            blocks = np.fromiter(chain.from_iterable(tables), np.int32)
            rows = host.tables[:num_seqs, group]
            rows[...] = 0
            rows[self._columns < lengths[:, None]] = np.maximum(blocks, 0, out=blocks)

    def _num_bytes(self, size: int) -> int:
        """Return the size of the buffer up to the tables of `size` sequences."""
        _, num_groups, width = self._tables_shape
        return self._tables_start + 4 * size * num_groups * width

    def _arrays(self, host: Tensor) -> _Arrays:
        """Return views of the buffer, or of memory for the first part of it."""
        array, num_integers = host.numpy(), int(np.prod(self._integers_shape))
        lens = array[self._lens_start : self._tables_start].view(np.int32)
        tables = array[self._tables_start :].view(np.int32)
        return _Arrays(
            integers=array[: 8 * num_integers].view(np.int64).reshape(self._integers_shape),
            seq_lens=lens[: self.max_num_seqs],
            tables=tables.reshape(-1, *self._tables_shape[1:]),
        )

    def _view(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_bytes = dtype.itemsize * int(np.prod(shape))
        return self._buffer[start : start + num_bytes].view(dtype).view(shape)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Inputs in memory of the host, by the kind of their numbers."""

    integers: NDArray[np.int64]
    """`[2 + num_groups, max_num_seqs]`: token ids, positions, and each group's slots."""
    seq_lens: NDArray[np.int32]
    """`[max_num_seqs]`."""
    tables: NDArray[np.int32]
    """`[size, num_groups, width]`."""
