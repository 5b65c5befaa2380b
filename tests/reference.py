"""What Transformers computes for a model folder, loaded once: the oracle of tokens.

A continuation counts only if rounding cannot change it: two implementations add in different orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from baton_core.router_messages import RequestSpec
from baton_core.sampling_params import SamplingParams, sequence_seed
from baton_core.step_plan import SampleSpec
from baton_engine.sampler import sample
from tests.models import make_prompt, reference_model

ROUNDING: Final = 1e-4
"""Far more than two float32 implementations differ by in a logit."""
MIN_DISTINCT_TOKENS: Final = 8
"""A continuation that only repeats itself would not notice a wrong context."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request and the tokens of its n sequences."""

    spec: RequestSpec
    expected: list[list[int]]


class Reference:
    """One model folder as Transformers runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def draw_greedy(
        self, num_prompt_tokens: int, num_tokens: int, prefix: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], list[int]]:
        """Draw prompts that begin with `prefix` until one has a clear continuation; return both."""
        for seed in range(20):
            own = make_prompt(num_prompt_tokens - len(prefix), seed=seed, vocab_size=self._vocab_size)
            prompt = (*prefix, *own)
            tokens, logits = self.generate(prompt, num_tokens)
            best_two = logits.topk(2, dim=-1).values
            is_clear = bool((best_two[:, 0] - best_two[:, 1] >= ROUNDING).all())
            if is_clear and len(set(tokens)) >= min(MIN_DISTINCT_TOKENS, num_tokens):
                return prompt, tokens
        raise AssertionError("no prompt has a clear continuation")

    def draw_job(
        self, request_id: str, prompt: Sequence[int], params: SamplingParams, first_seed: int = 0
    ) -> Job:
        """Draw seeds from `first_seed` on until all n continuations are clear."""
        for seed in range(first_seed, first_seed + 20):
            seeded = replace(params, seed=seed)
            drawn = [self._sample(prompt, seeded, index) for index in range(params.n)]
            expected = [tokens for tokens in drawn if tokens is not None]
            if len(expected) == params.n:
                spec = RequestSpec(request_id=request_id, prompt_token_ids=tuple(prompt), params=seeded)
                return Job(spec, expected)
        raise AssertionError("no seed has clear continuations")

    @torch.inference_mode()
    def generate(
        self, prompt: Sequence[int], num_tokens: int, eos_token_ids: Sequence[int] = ()
    ) -> tuple[list[int], Tensor]:
        """Return Transformers' greedy tokens and their logits `[num_tokens, vocab_size]`."""
        self._model.generation_config.eos_token_id = list(eos_token_ids) or None
        output = self._model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits)

    @torch.inference_mode()
    def _sample(self, prompt: Sequence[int], params: SamplingParams, index: int) -> list[int] | None:
        """Draw from Transformers' logits by the engine's rule; None where rounding might decide."""
        assert params.max_tokens is not None
        tokens: list[int] = []
        rows: list[Tensor] = []
        specs: list[SampleSpec] = []
        new_ids, cache = list(prompt), None
        while len(tokens) < params.max_tokens:
            output = self._model(torch.tensor([new_ids]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            rows.append(output.logits[0, -1:])
            specs.append(_sample_spec(params, index, len(prompt) + len(tokens)))
            new_ids = sample(rows[-1], specs[-1:]).tolist()
            tokens += new_ids
        return tokens if _is_clear(torch.cat(rows), specs, tokens) else None

    @cached_property
    def _model(self) -> PreTrainedModel:
        return reference_model(self.folder)

    @property
    def _vocab_size(self) -> int:
        return self._model.config.vocab_size


def _sample_spec(params: SamplingParams, index: int, position: int) -> SampleSpec:
    assert params.seed is not None
    return SampleSpec(
        seed=sequence_seed(params.seed, index),
        position=position,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
    )


def _is_clear(logits: Tensor, specs: Sequence[SampleSpec], tokens: list[int]) -> bool:
    """Whether the tokens stay when each logit `[num_tokens, vocab_size]` moves by up to ROUNDING."""
    generator = torch.Generator().manual_seed(0)
    moves = (torch.rand((4, *logits.shape), generator=generator) * 2 - 1) * ROUNDING
    return all(sample(logits + move, specs).tolist() == tokens for move in moves)
