"""The inputs of decode steps at fixed addresses, for kernels that are captured once and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.step_plan import SequenceSlice
from baton_engine.adapters.adapter_bank import NO_SLOT, AdapterBank
from baton_kernels.interface.kernels import AttentionBatch
from baton_kernels.interface.step_layout import StepLayout, table_array

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

        One copy from pinned memory, in stream order; the host memory stays alive until it is done. Where
        the slices' tokens are not known yet, `sampled` `[num_slices] int64` holds them on the device.
        """
        host = torch.zeros(self._num_bytes(size), dtype=torch.uint8, pin_memory=self._buffer.is_cuda)
        self._pack(host.numpy(), slices)
        self._buffer[: len(host)].copy_(host, non_blocking=True)
        if sampled is not None:
            self.token_ids[: len(sampled)] = sampled
        if self.adapters is not None and any(piece.adapter for piece in slices):
            slots = [self.adapters.slot(piece.adapter) for piece in slices]
            slots += [NO_SLOT] * (size - len(slots))
            host = torch.tensor(slots, dtype=torch.int32, pin_memory=self._buffer.is_cuda)
            self._adapter_slots[:size].copy_(host, non_blocking=True)

    def adapting(self, size: int, *, has_adapters: bool) -> AbstractContextManager[None]:
        """Have layers add the deltas of the adapters of the first `size` sequences, if some have one."""
        if self.adapters is None or not has_adapters:
            return nullcontext()
        return self.adapters.reading(self._adapter_slots[:size])

    def _pack(self, host: NDArray[np.uint8], slices: Sequence[SequenceSlice]) -> None:
        num_seqs = len(slices)
        layout = StepLayout.of((1,) * num_seqs, [piece.start + 1 for piece in slices])
        integers = _as_array(host[: self._lens_start], self._integers_shape, np.int64)
        integers[0, :num_seqs] = [piece.token_ids[0] for piece in slices]
        integers[1, :num_seqs] = layout.positions
        integers[2:] = PADDING_SLOT
        lens = _as_array(host[self._lens_start : self._tables_start], (self.max_num_seqs,), np.int32)
        lens[:num_seqs] = layout.seq_lens
        _, num_groups, width = self._tables_shape
        tables = host[self._tables_start :].view(np.int32).reshape(-1, num_groups, width)
        for group in range(num_groups):
            array = table_array([piece.block_tables[group] for piece in slices], width)
            integers[2 + group, :num_seqs] = layout.slots(array, self._spec.block_size)
            tables[:num_seqs, group] = array

    def _num_bytes(self, size: int) -> int:
        """Return the size of the buffer up to the tables of `size` sequences."""
        _, num_groups, width = self._tables_shape
        return self._tables_start + 4 * size * num_groups * width

    def _view(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_bytes = dtype.itemsize * int(np.prod(shape))
        return self._buffer[start : start + num_bytes].view(dtype).view(shape)


def _as_array(host: NDArray[np.uint8], shape: tuple[int, ...], dtype: type[Any]) -> NDArray[Any]:
    array: NDArray[Any] = host[: np.dtype(dtype).itemsize * int(np.prod(shape))].view(dtype)
    return array.reshape(shape)
