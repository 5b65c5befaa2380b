"""Runs step plans on one device: copies blocks, computes one forward pass, draws tokens.

It knows no phases: prompt chunks, decoded tokens and recomputed ones are slices of different lengths.
Called from the engine thread only.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from torch import Tensor

from baton_core.kv_spec import KVSpec
from baton_core.step_plan import SampleSpec, SeqId, SequenceSlice, StepPlan, StepResult
from baton_engine.decode_graphs import MAX_CAPTURED_SEQS, DecodeGraphs
from baton_engine.decode_inputs import DecodeInputs
from baton_engine.models.model import Model
from baton_engine.sampler import sample
from baton_engine.step_attention import StepAttention
from baton_kernels.interface import AttentionBatch, AttentionKernels
from baton_kernels.sampling import SamplingKernels
from baton_kernels.torch_sampling import TorchSampling
from baton_kernels.upload import upload


class ModelRunner:
    """A model with its kernels and its KV pool.

    `kv_pool` is `[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]` on the model's device.
    """

    def __init__(
        self,
        model: Model,
        kernels: AttentionKernels,
        kv_pool: Tensor,
        spec: KVSpec,
        sampling: SamplingKernels | None = None,
    ) -> None:
        self.model = model
        self.kv_pool = kv_pool
        self._kernels = kernels
        self._sampling = sampling or TorchSampling()
        self.spec = spec
        self._graphs: DecodeGraphs | None = None

    def capture_decodes(self, max_num_seqs: int, max_model_len: int) -> None:
        """Capture the decode steps of up to `max_num_seqs` sequences; from now on they are replayed.

        Raises:
            InvalidConfigError: the model does something that cannot be captured.
            torch.OutOfMemoryError: the device has no memory left for what a step computes.
        """
        max_num_seqs = min(max_num_seqs, MAX_CAPTURED_SEQS)
        inputs = DecodeInputs(self.spec, max_num_seqs, max_model_len, self.model.device)
        self._graphs = DecodeGraphs(self.model, self._kernels, self.kv_pool, self.spec, inputs)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Mutates `kv_pool` at the copied blocks and the slices' slots."""
        if plan.block_copies:
            self._kernels.copy_blocks(self.kv_pool, plan.block_copies)
        sampled = self._run(plan.slices) if plan.slices else ()
        return StepResult(step_id=plan.step_id, sampled=sampled)

    def warm_up(self, max_model_len: int) -> None:
        """Run a prompt and a decode step, so that the first request does not pay for what starts lazily.

        No longer than `max_model_len` tokens. Mutates block 0: call it before the first sequence.
        """
        spec = SampleSpec(seed=0, position=0, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        prompt_len = max(1, min(self.spec.block_size, max_model_len) - 1)
        for step_id, (start, num_tokens) in enumerate(((0, prompt_len), (prompt_len - 1, 1))):
            piece = SequenceSlice(
                seq_id=SeqId("warm-up", 0),
                token_ids=(0,) * num_tokens,
                start=start,
                block_tables=((0,),) * len(self.spec.groups),
                samples=(spec,),
            )
            self.execute(StepPlan(step_id=step_id, slices=(piece,)))

    def _run(self, slices: tuple[SequenceSlice, ...]) -> tuple[tuple[int, ...], ...]:
        if self._graphs is not None and self._graphs.takes(slices):
            return self._sample(self._graphs.forward(slices), slices)
        token_ids = np.fromiter(chain.from_iterable(piece.token_ids for piece in slices), np.int64)
        attention = StepAttention(self._kernels, self.kv_pool, self.spec, self._batches(slices))
        (on_device,) = upload((token_ids,), self.model.device)
        return self._sample(self.model.forward(on_device, attention), slices)

    def _batches(self, slices: tuple[SequenceSlice, ...]) -> list[AttentionBatch]:
        """Where the slices stand, for each KV group."""
        return AttentionBatch.build_groups(
            query_lens=[piece.num_scheduled_tokens for piece in slices],
            context_lens=[piece.start + piece.num_scheduled_tokens for piece in slices],
            block_tables=list(zip(*(piece.block_tables for piece in slices), strict=True)),
            windows=[group.window for group in self.spec.groups],
            block_size=self.spec.block_size,
            device=self.model.device,
        )

    def _sample(self, hidden: Tensor, slices: tuple[SequenceSlice, ...]) -> tuple[tuple[int, ...], ...]:
        """Draw every slice's samples from the logits of its last token, computed once per slice."""
        last_rows: list[int] = []
        logits_row_of_sample: list[int] = []
        specs: list[SampleSpec] = []
        num_tokens = 0
        for piece in slices:
            num_tokens += piece.num_scheduled_tokens
            if piece.samples:
                logits_row_of_sample += [len(last_rows)] * len(piece.samples)
                last_rows.append(num_tokens - 1)
                specs += piece.samples
        if not specs:
            return ((),) * len(slices)
        logits = self.model.logits(hidden if len(last_rows) == len(hidden) else hidden[last_rows])
        if len(specs) > len(last_rows):
            logits = logits[logits_row_of_sample]
        drawn = iter(sample(logits, specs, self._sampling).tolist())
        return tuple(tuple(next(drawn) for _ in piece.samples) for piece in slices)
