"""Decode steps as captured CUDA graphs: one launch for a whole forward pass.

A graph replays the same kernels on the same addresses. So a step's inputs are copied into static buffers, and
its sequences padded to one of a few sizes; everything else, above all prompt chunks, runs eagerly. Where the
engine takes adapters, each size is captured without them and with.
Called from the engine thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.step_plan import SequenceSlice
from baton_engine.models.model import Model
from baton_engine.models.step_attention import StepAttention
from baton_engine.steps.decode_inputs import DecodeInputs
from baton_kernels.interface.kernels import AttentionKernels

logger = logging.getLogger(__name__)

MAX_CAPTURED_SEQS: Final = 256
"""A larger step computes long enough to hide its launches."""


def capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Numbers of sequences that decode steps are padded to: 1, 2, 4, multiples of 8, and the largest."""
    limit = min(max_num_seqs, MAX_CAPTURED_SEQS)
    sizes = {size for size in (1, 2, 4, *range(8, limit, 8)) if size < limit}
    return (*sorted(sizes), limit)


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    hidden: Tensor
    """`[size, hidden_size]`, the output of a replay."""


class DecodeGraphs:
    """The captured decode steps of one model on one KV pool, ready to be replayed.

    Raises:
        InvalidConfigError: the model does something that cannot be captured.
        torch.OutOfMemoryError: the device has no memory left for what a step computes.
    """

    def __init__(
        self,
        model: Model,
        kernels: AttentionKernels,
        kv_pool: Tensor,
        spec: KVSpec,
        inputs: DecodeInputs,
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._attentions = {
            size: StepAttention(kernels, kv_pool, spec, inputs.batches(size))
            for size in capture_sizes(inputs.max_num_seqs)
        }
        self._captured: dict[tuple[int, bool], _Captured] = {}
        """By number of sequences, and whether some may have adapters."""
        self._capture_all()

    def takes(self, slices: Sequence[SequenceSlice]) -> bool:
        """Say whether a step is replayed."""
        return self._inputs.takes(slices)

    def forward(self, slices: Sequence[SequenceSlice], sampled: Tensor | None = None) -> Tensor:
        """Return the final hidden states `[num_seqs, hidden_size]`, valid until the next step.

        Writes K and V of every token to the pool; padding writes nothing. `sampled` is that of
        `DecodeInputs.fill`.
        """
        size = min(size for size in self._attentions if size >= len(slices))
        self._inputs.fill(slices, size, sampled)
        captured = self._captured[size, any(piece.adapter for piece in slices)]
        captured.graph.replay()
        return captured.hidden[: len(slices)]

    @torch.inference_mode()
    def _capture_all(self) -> None:
        """Largest first, in one memory pool, so that all smaller ones find room in its memory."""
        memory = torch.cuda.graph_pool_handle()
        kinds = (False,) if self._inputs.adapters is None else (False, True)
        for size, attention in reversed(self._attentions.items()):
            for has_adapters in kinds:
                try:
                    with self._inputs.adapting(size, has_adapters=has_adapters):
                        self._captured[size, has_adapters] = self._capture(size, attention, memory)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:
                    raise InvalidConfigError(
                        f"enforce_eager is False, and decode steps of {size} sequences cannot be captured "
                        f"({error}); allowed: True"
                    ) from error
        logger.info("captured decode steps of %s sequences", ", ".join(map(str, self._attentions)))

    def _capture(self, size: int, attention: StepAttention, memory: Any) -> _Captured:
        token_ids = self._inputs.token_ids[:size]
        # Kernels are compiled and libraries choose their algorithms outside of the capture. The inputs are
        # all padding, so no block is touched.
        self._model.forward(token_ids, attention)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            hidden = self._model.forward(token_ids, attention)
        return _Captured(graph, hidden)
