"""Decode graphs on a CPU: decode steps of few sequences, replayed without the Python between kernels.

Inputs of a step lie in `DecodeInputs`, as with captured CUDA graphs; but steps are not padded, and a number
of sequences is recorded when it first comes, once without adapters and once with. Sampling behind it has a
graph of its own, which is replayed if all there is to do is to sample. Exchanges with other ranks are part of
a recording. Each rank records its own, or none: what it exchanges is the same. Called from the engine thread
only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.step_plan import SequenceSlice
from baton_engine.models.model import Model
from baton_engine.models.step_attention import StepAttention
from baton_engine.steps.decode_inputs import DecodeInputs
from baton_engine.steps.sample_inputs import SampleInputs
from baton_kernels.cpu.graph_replay import GraphReplay, NotRecordableError
from baton_kernels.interface.kernels import AttentionKernels
from baton_kernels.interface.sampling import SamplingKernels

logger = logging.getLogger(__name__)

MAX_GRAPH_SEQS: Final = 8
"""A larger step gains little, and the memory of its graph grows with it."""


class _Kind(NamedTuple):
    """Steps that have a graph together, or the sampling behind them."""

    num_seqs: int
    has_adapters: bool
    is_sampled: bool


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
        sampling: SamplingKernels,
        *,
        is_alone: bool = True,
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._kv_pool = kv_pool
        self._spec = spec
        self._inputs = inputs
        self._sampling = sampling
        self._sample_inputs = SampleInputs(inputs.max_num_seqs)
        self._is_alone = is_alone
        self._is_recordable = True
        self._attentions: dict[int, StepAttention] = {}
        """By number of sequences: the inputs of a step, which its graphs read."""
        self._graphs: dict[_Kind, tuple[GraphReplay, Tensor]] = {}
        """By kind of step: the graph, and its output, which is `[num_seqs, hidden_size]`, or `[num_seqs]`
        tokens."""

    def takes(self, slices: Sequence[SequenceSlice]) -> bool:
        """Say whether a step is replayed."""
        return self._is_recordable and self._inputs.takes(slices)

    def samples(self, slices: Sequence[SequenceSlice]) -> bool:
        """Say whether a step is replayed with its sampling."""
        can_sample = self._is_alone and self._sampling.is_recordable
        return can_sample and self.takes(slices) and self._sample_inputs.takes(slices)

    @torch.inference_mode()
    def forward(self, slices: Sequence[SequenceSlice], sampled: Tensor | None = None) -> Tensor:
        """Return the final hidden states `[num_seqs, hidden_size]`, valid until the next step.

        Writes K and V of every token to the pool. `sampled` is that of `DecodeInputs.fill`.
        """
        return self._replay(slices, sampled, is_sampled=False)

    @torch.inference_mode()
    def sample(self, slices: Sequence[SequenceSlice], sampled: Tensor | None = None) -> Tensor:
        """Return the token that is sampled for each slice, `[num_seqs] int64`; otherwise as `forward`."""
        self._sample_inputs.fill([piece.samples[0] for piece in slices])
        return self._replay(slices, sampled, is_sampled=True).clone()

    @torch.inference_mode()
    def generate(self, slices: Sequence[SequenceSlice], num_tokens: int) -> list[Tensor]:
        """Return what so many steps sample one after the other, `[num_seqs] int64` each.

        The block tables of the slices have blocks for all of them.
        """
        tokens = [self.sample(slices)]
        while len(tokens) < num_tokens:
            self._inputs.advance(tokens[-1])
            self._sample_inputs.advance(len(slices))
            tokens.append(self._compute_filled(_kind(slices, is_sampled=True)).clone())
        return tokens

    def _replay(self, slices: Sequence[SequenceSlice], sampled: Tensor | None, *, is_sampled: bool) -> Tensor:
        self._inputs.fill(slices, len(slices), sampled)
        return self._compute_filled(_kind(slices, is_sampled=is_sampled))

    def _compute_filled(self, kind: _Kind) -> Tensor:
        """Compute the step that is filled in; the result is valid until the next one."""
        hidden = self._computed(kind._replace(is_sampled=False), self._forward)
        if not kind.is_sampled:
            return hidden
        return self._computed(kind, partial(self._sample, hidden))

    def _computed(self, kind: _Kind, compute: Callable[[_Kind], Tensor]) -> Tensor:
        """Return what `compute` returns; it is recorded the first time, and replayed later."""
        if not self._is_recordable:
            return compute(kind)
        if kind not in self._graphs:
            return self._record(kind, compute)
        graph, result = self._graphs[kind]
        try:
            graph.replay()
        except RuntimeError as error:
            return self._compute_again(kind, compute, error)
        return result

    def _record(self, kind: _Kind, compute: Callable[[_Kind], Tensor]) -> Tensor:
        """Compute and record a part of the step that is filled in."""
        try:
            graph, result = GraphReplay.record(partial(compute, kind))
        except NotRecordableError as error:
            self._give_up(error)
            return error.result
        except RuntimeError as error:
            return self._compute_again(kind, compute, error)
        self._graphs[kind] = graph, result
        return result

    def _give_up(self, error: Exception) -> None:
        """Compute all later steps eagerly."""
        logger.warning("decode steps run eagerly, which is slower: %s", error, exc_info=error)
        self._is_recordable = False
        self._graphs.clear()

    def _compute_again(self, kind: _Kind, compute: Callable[[_Kind], Tensor], error: RuntimeError) -> Tensor:
        """Compute eagerly over what a failed replay has left, and later steps too."""
        if not self._is_alone:
            raise error
        self._give_up(error)
        return compute(kind)

    def _forward(self, kind: _Kind) -> Tensor:
        if (attention := self._attentions.get(kind.num_seqs)) is None:
            batches = self._inputs.batches(kind.num_seqs)
            attention = StepAttention(self._kernels, self._kv_pool, self._spec, batches)
            self._attentions[kind.num_seqs] = attention
        with self._inputs.adapting(kind.num_seqs, has_adapters=kind.has_adapters):
            return self._model.forward(self._inputs.token_ids[: kind.num_seqs], attention)

    def _sample(self, hidden: Tensor, kind: _Kind) -> Tensor:
        with self._inputs.adapting(kind.num_seqs, has_adapters=kind.has_adapters):
            logits = self._model.logits(hidden)
        return self._sampling.sample(logits, self._sample_inputs.batch(kind.num_seqs))


def _kind(slices: Sequence[SequenceSlice], *, is_sampled: bool) -> _Kind:
    return _Kind(len(slices), any(piece.adapter for piece in slices), is_sampled)
