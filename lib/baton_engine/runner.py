"""Runs step plans on one device: copies blocks, computes one forward pass, draws tokens.

It knows no phases: prompt chunks, decoded tokens and recomputed ones are slices of different lengths.
Called from the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from baton_core.blocks.kv_spec import KVSpec
from baton_core.worker.step_plan import SequenceSlice, StepPlan, StepResult
from baton_engine.decode_graphs import MAX_CAPTURED_SEQS, DecodeGraphs
from baton_engine.decode_inputs import DecodeInputs
from baton_engine.decode_recordings import MAX_RECORDED_SEQS, DecodeRecordings
from baton_engine.download import begin_download
from baton_engine.models.model import Model
from baton_engine.prompt_logprobs import prompt_logprobs
from baton_engine.sampler import Drawn, Sampler
from baton_engine.step_attention import StepAttention
from baton_engine.step_pipeline import Launched
from baton_engine.step_results import step_result
from baton_kernels.interface import AttentionBatch, AttentionKernels
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
        sampler: Sampler | None = None,
    ) -> None:
        self.model = model
        self.kv_pool = kv_pool
        self._kernels = kernels
        self._sampler = sampler or Sampler()
        self.spec = spec
        self._captured: DecodeGraphs | DecodeRecordings | None = None
        self._last: tuple[int, Tensor] | None = None
        """Number of the step before, and the tokens that it drew, `[num_draws] int64` on the device."""

    def capture_decodes(self, max_num_seqs: int, max_model_len: int) -> None:
        """Capture the decode steps of up to `max_num_seqs` sequences; from now on they are replayed.

        Raises:
            InvalidConfigError: the model does something that cannot be captured.
            torch.OutOfMemoryError: the device has no memory left for what a step computes.
        """
        is_cpu = self.model.device.type == "cpu"
        max_num_seqs = min(max_num_seqs, MAX_RECORDED_SEQS if is_cpu else MAX_CAPTURED_SEQS)
        inputs = DecodeInputs(self.spec, max_num_seqs, max_model_len, self.model.device)
        capture = DecodeRecordings if is_cpu else DecodeGraphs
        self._captured = capture(self.model, self._kernels, self.kv_pool, self.spec, inputs)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Mutates `kv_pool` at the copied blocks and the slices' slots."""
        return self.launch(plan)()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Begin one step, behind those begun before; what is returned waits for it.

        A GPU goes on with it alone, unless the step has to look at its tokens for log-probabilities or rules.
        """
        if plan.block_copies:
            self._kernels.copy_blocks(self.kv_pool, plan.block_copies)
        if not plan.slices:
            return lambda: StepResult(step_id=plan.step_id, sampled=())
        hidden = self._forward(plan.slices, self._drawn_before(plan))
        drawn = self._draw(hidden, plan.slices)
        token_ids = begin_download(drawn.token_ids)
        prompts = prompt_logprobs(self.model, hidden, plan.slices, self._sampler.mode)
        self._last = plan.step_id, drawn.token_ids
        return lambda: step_result(plan, drawn, token_ids(), prompts)

    def _drawn_before(self, plan: StepPlan) -> Tensor | None:
        """Return `[num_slices] int64`, what the step before drew for each slice; None if all is known.

        Raises:
            RuntimeError: that step drew nothing.
        """
        if plan.follows is None:
            return None
        if self._last is None or self._last[0] != plan.follows.step_id:
            raise RuntimeError(f"step {plan.follows.step_id} failed, and step {plan.step_id} follows it")
        token_ids, rows = self._last[1], plan.follows.rows
        if len(rows) != len(token_ids):
            (index,) = upload((np.array(rows, np.int64),), self.model.device)
            token_ids = token_ids[index]
        return token_ids.clamp_min(0)  # a Refusal ends its sequence, which this step still computes

    def _forward(self, slices: tuple[SequenceSlice, ...], drawn: Tensor | None) -> Tensor:
        """Return the final hidden states of the `_wanted_rows`, or of all tokens, valid until the next step.

        `drawn` has the tokens of slices that do not know theirs.
        """
        if self._captured is not None and self._captured.takes(slices):
            return self._captured.forward(slices, drawn)
        attention = StepAttention(self._kernels, self.kv_pool, self.spec, self._batches(slices))
        if drawn is None:
            token_ids = np.fromiter(chain.from_iterable(piece.token_ids for piece in slices), np.int64)
            (drawn,) = upload((token_ids,), self.model.device)
        wanted = _wanted_rows(slices)
        if wanted is None:
            return self.model.forward(drawn, attention)
        (rows,) = upload((np.array(wanted, np.int64),), self.model.device)
        return self.model.forward(drawn, attention, rows)

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

    def _draw(self, hidden: Tensor, slices: tuple[SequenceSlice, ...]) -> Drawn:
        """Draw every slice's samples from the logits of its last token, computed once per slice."""
        drawing = [piece for piece in slices if piece.samples]
        if not drawing:
            return Drawn()
        logits = self.model.logits(hidden if len(drawing) == len(hidden) else hidden[_last_rows(slices)])
        specs = [spec for piece in drawing for spec in piece.samples]
        if len(specs) > len(drawing):
            logits = logits[[row for row, piece in enumerate(drawing) for _ in piece.samples]]
        return self._sampler.draw(logits, specs)


def _last_rows(slices: Sequence[SequenceSlice]) -> list[int]:
    """Where the last tokens of the slices with samples are among the tokens of the step."""
    ends = accumulate(piece.num_scheduled_tokens for piece in slices)
    return [end - 1 for end, piece in zip(ends, slices, strict=True) if piece.samples]


def _wanted_rows(slices: Sequence[SequenceSlice]) -> list[int] | None:
    """The tokens whose hidden states somebody looks at, at least one; None if they are all."""
    num_tokens = sum(piece.num_scheduled_tokens for piece in slices)
    rows = _last_rows(slices)
    if len(rows) == num_tokens or any(piece.prompt_logprobs is not None for piece in slices):
        return None
    return rows or [num_tokens - 1]
