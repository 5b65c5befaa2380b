"""Sampling: from the scheduler's sample specs to tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import SampleSpec
from baton_engine.sampling.logits_rules import LogitsRules
from baton_engine.sampling.token_logprobs import LogprobsMode, chunks, gather_logprobs
from baton_kernels.interface.sampling import SampleBatch, SamplingKernels
from baton_kernels.reference.torch_sampling import TorchSampling, drop_filtered

_TORCH = TorchSampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """A token for each row of logits, and log-probabilities or errors of some rows."""

    token_ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """`[num_rows] int64` on the logits' device, which may still compute them; a `Refusal` for a row that
    gives none."""
    logprobs: Mapping[int, PositionLogprobs] = field(default_factory=dict)
    failures: Mapping[int, Exception] = field(default_factory=dict)
    """Errors of rows whose rules failed; their tokens are undefined."""


def joined(outputs: Sequence[SamplerOutput]) -> SamplerOutput:
    """Return the output of all rows, given those of parts of them, in order."""
    starts = accumulate((len(output.token_ids) for output in outputs), initial=0)
    parts = list(zip(starts, outputs, strict=False))
    return SamplerOutput(
        token_ids=torch.cat([output.token_ids for output in outputs]),
        logprobs={start + row: told for start, output in parts for row, told in output.logprobs.items()},
        failures={start + row: error for start, output in parts for row, error in output.failures.items()},
    )


class Sampler:
    """Applies rules, samples, and returns log-probabilities; called from the engine thread only."""

    def __init__(
        self,
        kernels: SamplingKernels | None = None,
        rules: LogitsRules | None = None,
        mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS,
    ) -> None:
        self.kernels = kernels or _TORCH
        self._rules = rules or LogitsRules()
        self.mode = mode

    def sample(self, logits: Tensor, specs: Sequence[SampleSpec]) -> SamplerOutput:
        """Sample one token per row of `logits` `[num_rows, vocab_size]`, whose rows with rules may change."""
        histories = {row: spec.history for row, spec in enumerate(specs) if spec.history is not None}
        asked = {row: spec.logprobs for row, spec in enumerate(specs) if spec.logprobs is not None}
        if not (histories or asked):
            return SamplerOutput(token_ids=sample(logits, specs, self.kernels))
        failures: dict[int, Exception] = {}
        rows = list(asked)
        told = logits[rows]  # a copy: rules change the logits in place
        if histories:
            logits = logits.float().contiguous()
            failures = self._rules.apply(logits, histories)
        token_ids = sample(logits, specs, self.kernels)
        if self.mode.is_processed:
            told = processed_logits(logits[rows], [specs[row] for row in rows])
        elif histories:
            self._rules.mask_grammars(told, rows)
        logprobs: dict[int, PositionLogprobs] = {}
        on_host = token_ids.tolist() if rows else []
        for part in chunks(len(rows)):
            values, of_part = self.mode.values(told[part]), rows[part]
            tokens = [max(0, on_host[row]) for row in of_part]  # a Refusal has no log-probability
            found = gather_logprobs(values, tokens, [asked[row] for row in of_part])
            logprobs |= zip(of_part, found, strict=True)
        return SamplerOutput(token_ids=token_ids, logprobs=logprobs, failures=failures)


def sample(logits: Tensor, specs: Sequence[SampleSpec], kernels: SamplingKernels = _TORCH) -> Tensor:
    """Sample one token per row of `logits` `[num_rows, vocab_size]`; return `[num_rows] int64`."""
    return kernels.sample(logits, sample_batch(specs, logits.device))


def sample_batch(specs: Sequence[SampleSpec], device: torch.device | str = "cpu") -> SampleBatch:
    """Return the rows' parameters on the device."""
    return SampleBatch.build(
        seeds=[spec.seed for spec in specs],
        positions=[spec.position for spec in specs],
        top_k=[spec.top_k for spec in specs],
        temperature=[spec.temperature for spec in specs],
        top_p=[spec.top_p for spec in specs],
        min_p=[spec.min_p for spec in specs],
        device=device,
    )


def processed_logits(logits: Tensor, specs: Sequence[SampleSpec]) -> Tensor:
    """Return `logits` `[num_rows, vocab_size]` after temperature and filters, on the CPU, as float32.

    Greedy rows have neither. It is slow: kernels keep no such logits, and nobody but a reader needs them.
    """
    logits = logits.float().cpu()
    batch = sample_batch(specs)
    rows = (batch.temperature > 0).nonzero()[:, 0]
    scaled = logits[rows] / batch.temperature[rows].float()[:, None]
    scores = scaled - scaled.amax(dim=1, keepdim=True)
    drop_filtered(scores, batch.rows(rows))
    return logits.index_copy(0, rows, scaled.masked_fill(scores == -torch.inf, -torch.inf))
