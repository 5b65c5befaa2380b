"""Runs step plans on one device: copies blocks, computes one forward pass, samples tokens.

It knows no phases: prompt chunks, decoded tokens and recomputed ones are slices of different lengths.
Called from the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, chain, takewhile
from typing import Final

import numpy as np
import torch
from torch import Tensor

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.transfer_plan import block_part
from baton_core.worker.step_plan import SequenceSlice, StepPlan, StepResult
from baton_engine.adapters.adapter_bank import AdapterBank
from baton_engine.models.input_embeds import input_embeds
from baton_engine.models.model import Model
from baton_engine.models.step_attention import StepAttention
from baton_engine.pooling.pooler import Pooler
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_engine.sampling.sampler import Sampler, SamplerOutput, joined
from baton_engine.steps.decode_graphs import MAX_CAPTURED_SEQS, DecodeGraphs
from baton_engine.steps.decode_inputs import DecodeInputs
from baton_engine.steps.decode_replay import MAX_GRAPH_SEQS, DecodeReplay
from baton_engine.steps.decoded_slices import advanced, decoded_rows
from baton_engine.steps.pooled_results import pooled_result, pooled_rows, step_token_types
from baton_engine.steps.prompt_logprobs import PromptLogprobs, follow_prompt_logprobs, prompt_logprobs
from baton_engine.steps.step_pipeline import Launched
from baton_engine.steps.step_results import step_result
from baton_kernels.interface.kernels import AttentionBatch, AttentionKernels
from baton_kernels.interface.upload import upload

MAX_COPIED_ROWS: Final = 256
"""Copies of logits that are made at a time for sequences of one prompt: 256 MiB with 2**18 tokens."""


class ModelRunner:
    """A model with its kernels and its KV pool, or one rank's part of them.

    `kv_pool` is `[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]` on the model's device, as
    `spec` describes it. The ranks of a group share it: each writes and reads its own layers and KV heads. A
    rank's own pool has these alone.
    """

    def __init__(
        self,
        model: Model,
        kernels: AttentionKernels,
        kv_pool: Tensor,
        spec: KVSpec,
        sampler: Sampler | None = None,
        ranks: Ranks = ALONE,
        pooler: Pooler | None = None,
        adapters: AdapterBank | None = None,
    ) -> None:
        self.rank = self.local_rank = ranks.place.rank
        """Number among the processes that compute one model together."""
        self._ranks = ranks
        self.model = model
        self.kv_pool = kv_pool
        part = block_part(spec, ranks.place)
        self._own_pool = kv_pool
        if kv_pool.shape[1:] == (own := part.spec(spec)).block_shape:
            spec = own
        else:
            self._own_pool = kv_pool[:, :, :, part.heads.start : part.heads.stop]
        self._kernels = kernels
        self._pooler = pooler
        self.adapters = adapters
        """The LoRA adapters; None where the model takes none."""
        self._sampler = sampler or Sampler()
        self.spec = spec
        self._captured: DecodeGraphs | DecodeReplay | None = None
        self._sampling_replay: DecodeReplay | None = None
        """The captured steps, where sampling is a part of them."""
        self.max_captured_rows = 0
        """Tokens of the largest decode step that is replayed."""
        self._last: tuple[int, Tensor] | None = None
        """Id of the previous step, and the tokens that it sampled, `[num_samples] int64` on the device."""

    def capture_decodes(self, max_num_rows: int, max_model_len: int) -> None:
        """Capture the decode steps of up to `max_num_rows` tokens; from now on they are replayed.

        Raises:
            InvalidConfigError: the model does something that cannot be captured.
            torch.OutOfMemoryError: the device has no memory left for what a step computes.
        """
        is_cpu = self.model.device.type == "cpu"
        max_num_rows = min(max_num_rows, MAX_GRAPH_SEQS if is_cpu else MAX_CAPTURED_SEQS)
        adapters = self.adapters if self.adapters is not None and self.adapters.is_capturable else None
        inputs = DecodeInputs(self.spec, max_num_rows, max_model_len, self.model.device, adapters)
        parts = self.model, self._kernels, self._own_pool, self.spec, inputs
        if is_cpu:
            replay = DecodeReplay(*parts, self._sampler.kernels, is_alone=self._ranks.is_alone)
            self._captured = self._sampling_replay = replay
        else:
            self._captured = DecodeGraphs(*parts)
        self.max_captured_rows = max_num_rows

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Mutates `kv_pool` at the copied blocks and the slices' slots."""
        return self.launch(plan)()

    @torch.inference_mode()
    def generate(self, slices: tuple[SequenceSlice, ...], num_tokens: int) -> list[tuple[int, ...]]:
        """Sample so many tokens behind each slice, one after the other; the host looks at none in between.

        Args:
            slices: of one token and one sample each, whose block tables have blocks for all tokens.

        Returns the tokens of each slice, up to one that cannot be sampled.
        """
        if (replay := self._sampling_replay) is not None and replay.samples(slices):
            steps = replay.generate(slices, num_tokens)
        else:
            steps = []
            for number in range(num_tokens):
                rows = tuple(advanced(piece, number) for piece in slices)
                hidden = self._forward(rows, steps[-1].clamp_min(0) if steps else None)
                steps.append(self._sample(hidden, rows).token_ids)
        return [
            tuple(takewhile(lambda token: token >= 0, tokens)) for tokens in torch.stack(steps, 1).tolist()
        ]

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Begin one step after those begun before; the returned callable waits for it.

        A GPU computes it asynchronously, unless log-probabilities or rules need its tokens on the host. A
        stage of a pipeline computes it when it is waited for: the stages before it begin at once.
        """
        if plan.block_copies:
            self._kernels.copy_blocks(self.kv_pool, plan.block_copies)
        self._ranks.announce(plan)
        if self._ranks.place.sizes.pipeline > 1:
            return lambda: self._compute(plan)()
        return self._compute(plan)

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> Launched:
        if not plan.slices:
            return lambda: StepResult(step_id=plan.step_id, sampled=())
        rows, before = decoded_rows(plan.slices), self._sampled_before(plan)
        if (replay := self._sampling_replay) is not None and replay.samples(rows):
            return self._launched(plan, SamplerOutput(token_ids=replay.sample(rows, before)), {})
        hidden = self._forward(rows, before)
        if self._pooler is not None:
            result = StepResult(step_id=plan.step_id, sampled=((),) * len(plan.slices))
            if self._ranks.place.is_leader:
                result = pooled_result(self._pooler, hidden, plan)
            return lambda: result
        if not self._ranks.place.is_leader:
            return self._follow(hidden, plan, rows)
        sampled = self._sample(hidden, rows)
        prompts = prompt_logprobs(self._logits_of, hidden, plan.slices, self._sampler.mode)
        return self._launched(plan, sampled, prompts)

    def _launched(self, plan: StepPlan, sampled: SamplerOutput, prompts: PromptLogprobs) -> Launched:
        """Keep what a step has sampled for the next one; what is returned waits for it."""
        token_ids = begin_download(sampled.token_ids)
        self._last = plan.step_id, sampled.token_ids
        return lambda: step_result(plan, sampled, token_ids(), prompts)

    def _follow(self, hidden: Tensor, plan: StepPlan, rows: tuple[SequenceSlice, ...]) -> Launched:
        """Compute this rank's part of the logits that the leader of its group asks for."""
        if self._ranks.place.is_last_stage:
            self._logits(hidden, rows)
            follow_prompt_logprobs(self._logits_of, hidden, plan.slices)
        return lambda: StepResult(step_id=plan.step_id, sampled=())

    def _sampled_before(self, plan: StepPlan) -> Tensor | None:
        """Return `[num_slices] int64`, the tokens that the previous step sampled for the slices, or None.

        The leader of a group has them, and gives them to the other ranks.

        Raises:
            RuntimeError: that step sampled none.
        """
        if plan.follows is None:
            return None
        whole, leader = self._ranks.whole, self._ranks.place.sizes.leader
        if not self._ranks.place.is_leader:
            empty = torch.empty(len(plan.slices), dtype=torch.int64, device=self.model.device)
            return whole.broadcast(empty, leader)
        if self._last is None or self._last[0] != plan.follows.step_id:
            raise RuntimeError(f"step {plan.follows.step_id} failed, and step {plan.step_id} follows it")
        token_ids, rows = self._last[1], plan.follows.rows
        if len(rows) != len(token_ids):
            (index,) = upload((np.array(rows, np.int64),), self.model.device)
            token_ids = token_ids[index]
        # A Refusal ends its sequence, which this step still computes.
        return whole.broadcast(token_ids.clamp_min(0), leader)

    def _forward(self, slices: tuple[SequenceSlice, ...], sampled: Tensor | None) -> Tensor:
        """Return the final hidden states of the `_wanted_rows`, or of all tokens, valid until the next step.

        `sampled` has the tokens of slices that do not know theirs.
        """
        if self._captured is not None and self._captured.takes(slices):
            return self._captured.forward(slices, sampled)
        token_types = step_token_types(slices, self.model.device) if self._pooler is not None else None
        attention = StepAttention(
            self._kernels, self._own_pool, self.spec, self._batches(slices), token_types
        )
        if sampled is None:
            token_ids = np.fromiter(chain.from_iterable(piece.token_ids for piece in slices), np.int64)
            (sampled,) = upload((token_ids,), self.model.device)
        wanted = _wanted_rows(slices) if self._pooler is None else pooled_rows(self._pooler, slices)
        rows = None
        if wanted is not None:
            (rows,) = upload((np.array(wanted, np.int64),), self.model.device)
        embeds = input_embeds(slices, self.model.dtype, self.model.device)
        others = {} if embeds is None else {"embeds": embeds}
        with self._adapting([(piece.adapter, piece.num_scheduled_tokens) for piece in slices], wanted):
            return self.model.forward(sampled, attention, rows, **others)

    def _adapting(
        self, runs: Sequence[tuple[str, int]], wanted: Sequence[int] | None = None
    ) -> AbstractContextManager[None]:
        """Have layers add the deltas of adapters to their rows, given as runs of so many rows of each."""
        if self.adapters is None or not any(digest for digest, _ in runs):
            return nullcontext()
        return self.adapters.choosing([digest for digest, number in runs for _ in range(number)], wanted)

    def _batches(self, slices: tuple[SequenceSlice, ...]) -> list[AttentionBatch]:
        """Return the positions of the slices, for each KV group."""
        return AttentionBatch.build_groups(
            query_lens=[piece.num_scheduled_tokens for piece in slices],
            context_lens=[piece.start + piece.num_scheduled_tokens for piece in slices],
            block_tables=list(zip(*(piece.block_tables for piece in slices), strict=True)),
            windows=[group.window for group in self.spec.groups],
            block_size=self.spec.block_size,
            device=self.model.device,
        )

    def _sample(self, hidden: Tensor, slices: tuple[SequenceSlice, ...]) -> SamplerOutput:
        """Sample every slice from the logits of its last token, computed once per slice."""
        sampling = [piece for piece in slices if piece.samples]
        if not sampling:
            return SamplerOutput()
        logits = self._logits(hidden, slices)
        specs = [spec for piece in sampling for spec in piece.samples]
        if len(specs) == len(sampling):
            return self._sampler.sample(logits, specs)
        rows = [row for row, piece in enumerate(sampling) for _ in piece.samples]
        parts = [slice(start, start + MAX_COPIED_ROWS) for start in range(0, len(rows), MAX_COPIED_ROWS)]
        return joined([self._sampler.sample(logits[rows[part]], specs[part]) for part in parts])

    def _logits(self, hidden: Tensor, slices: Sequence[SequenceSlice]) -> Tensor:
        """Return the logits of the slices with samples, at most one row for each."""
        rows = _last_rows(slices)
        if not rows:
            return hidden[:0]
        with self._adapting([(piece.adapter, 1) for piece in slices if piece.samples]):
            return self.model.logits(hidden if len(rows) == len(hidden) else hidden[rows])

    def _logits_of(self, hidden: Tensor, adapter: str) -> Tensor:
        """Return the logits of rows of one adapter."""
        with self._adapting([(adapter, len(hidden))]):
            return self.model.logits(hidden)


def _last_rows(slices: Sequence[SequenceSlice]) -> list[int]:
    """Return the rows of the last tokens of slices with samples, among the tokens of the step."""
    ends = accumulate(piece.num_scheduled_tokens for piece in slices)
    return [end - 1 for end, piece in zip(ends, slices, strict=True) if piece.samples]


def _wanted_rows(slices: Sequence[SequenceSlice]) -> list[int] | None:
    """Return the tokens whose hidden states are needed, at least one; None if all are."""
    num_tokens = sum(piece.num_scheduled_tokens for piece in slices)
    rows = _last_rows(slices)
    if len(rows) == num_tokens or any(piece.prompt_logprobs is not None for piece in slices):
        return None
    return rows or [num_tokens - 1]


def begin_download(tokens: Tensor) -> Callable[[], list[int]]:
    """Begin to copy `tokens` `[n] int64` to the host, in stream order; the callable waits for them.

    It may be called on another thread. On the CPU they are there.
    """
    if tokens.device.type == "cpu":
        return tokens.tolist
    host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    host.copy_(tokens, non_blocking=True)
    is_copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_copied.record()

    def wait() -> list[int]:
        is_copied.synchronize()
        return host.tolist()

    return wait
