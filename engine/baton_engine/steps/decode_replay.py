"""Decode graphs on a CPU: decode steps of few sequences, replayed without the Python between kernels.

Inputs of a step lie in `DecodeInputs`, as with captured CUDA graphs; but steps are not padded, and a number
of sequences is recorded when it first comes. Exchanges with other ranks are part of a recording. Each rank
records its own, or none: what it exchanges is the same. Called from the engine thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.step_plan import SequenceSlice
from baton_engine.models.model import Model
from baton_engine.models.step_attention import StepAttention
from baton_engine.steps.decode_inputs import DecodeInputs
from baton_kernels.cpu.graph_replay import GraphReplay, NotRecordableError
from baton_kernels.interface.kernels import AttentionKernels

logger = logging.getLogger(__name__)

MAX_GRAPH_SEQS: Final = 8
"""A larger step gains little, and the memory of its graph grows with it."""


class DecodeReplay:
    """The decode graphs of one model, or of one rank's part of it, on one KV pool.

    A step that fails is computed again if the process `is_alone`; else other ranks are within it.
    """

    def __init__(
        self,
        model: Model,
        kernels: AttentionKernels,
        kv_pool: Tensor,
        spec: KVSpec,
        inputs: DecodeInputs,
        *,
        is_alone: bool = True,
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._kv_pool = kv_pool
        self._spec = spec
        self._inputs = inputs
        self._is_alone = is_alone
        self._is_recordable = True
        self._graphs: dict[int, tuple[GraphReplay, Tensor, StepAttention]] = {}
        """By number of sequences: the graph, its output `[num_seqs, hidden_size]`, and its inputs."""

    def takes(self, slices: Sequence[SequenceSlice]) -> bool:
        """Say whether a step is replayed: one token of each sequence, no embeddings, and not too many."""
        return (
            self._is_recordable
            and len(slices) <= self._inputs.max_num_seqs
            and all(
                piece.num_scheduled_tokens == 1 and not (piece.embeds or piece.adapter) for piece in slices
            )
        )

    @torch.inference_mode()
    def forward(self, slices: Sequence[SequenceSlice], sampled: Tensor | None = None) -> Tensor:
        """Return the final hidden states `[num_seqs, hidden_size]`, valid until the next step.

        Writes K and V of every token to the pool. `sampled` is that of `DecodeInputs.fill`.
        """
        num_seqs = len(slices)
        self._inputs.fill(slices, num_seqs, sampled)
        if num_seqs not in self._graphs:
            return self._record(num_seqs)
        graph, hidden, _ = self._graphs[num_seqs]
        try:
            graph.replay()
        except RuntimeError as error:
            return self._compute_again(num_seqs, error)
        return hidden

    def _record(self, num_seqs: int) -> Tensor:
        """Compute and record the step that is filled in."""
        attention = self._attention(num_seqs)
        try:
            graph, hidden = GraphReplay.record(partial(self._compute, num_seqs, attention))
        except NotRecordableError as error:
            self._give_up(error)
            return error.result
        except RuntimeError as error:
            return self._compute_again(num_seqs, error)
        self._graphs[num_seqs] = graph, hidden, attention
        return hidden

    def _give_up(self, error: Exception) -> None:
        """Compute all later steps eagerly."""
        logger.warning("decode steps run eagerly, which is slower: %s", error, exc_info=error)
        self._is_recordable = False
        self._graphs.clear()

    def _compute_again(self, num_seqs: int, error: RuntimeError) -> Tensor:
        """Compute the step that is filled in eagerly, over what a failed one has left, and later ones too."""
        if not self._is_alone:
            raise error
        self._give_up(error)
        return self._compute(num_seqs, self._attention(num_seqs))

    def _attention(self, num_seqs: int) -> StepAttention:
        return StepAttention(self._kernels, self._kv_pool, self._spec, self._inputs.batches(num_seqs))

    def _compute(self, num_seqs: int, attention: StepAttention) -> Tensor:
        return self._model.forward(self._inputs.token_ids[:num_seqs], attention)
