"""Transformers' tokens of a model folder, loaded once: the oracle.

A continuation counts only if rounding cannot change it: two implementations add in different orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from baton_core.requests.sampling_params import sequence_seed
from baton_core.requests.sampling_rules import SamplingRules
from baton_core.sessions.router_messages import RequestSpec
from baton_core.worker.step_plan import SampleSpec, SamplingHistory, SeqId
from baton_engine.sampling.sampler import Sampler
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

    min_gap: ClassVar[float] = ROUNDING
    """Between the two best logits of each token of a clear continuation."""
    max_draws: ClassVar[int] = 20
    """Prompts that are tried before none is found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def draw_greedy(
        self, num_prompt_tokens: int, num_tokens: int, prefix: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], list[int]]:
        """Draw prompts that begin with `prefix` until one has a clear continuation; return both."""
        (drawn,) = self.draw_all_greedy([(num_prompt_tokens, prefix)], num_tokens)
        return drawn

    def draw_all_greedy(
        self, wanted: Sequence[tuple[int, Sequence[int]]], num_tokens: int
    ) -> list[tuple[tuple[int, ...], list[int]]]:
        """As `draw_greedy`, for several pairs of a prompt's length and its prefix, in one batch."""
        drawn: dict[int, tuple[tuple[int, ...], list[int]]] = {}
        for seed in range(self.max_draws):
            missing = [number for number in range(len(wanted)) if number not in drawn]
            prompts = [self._draw_prompt(*wanted[number], seed) for number in missing]
            continuations = self.generate_all(prompts, num_tokens) if prompts else []
            for number, prompt, (tokens, logits) in zip(missing, prompts, continuations, strict=True):
                best_two = logits.topk(2, dim=-1).values
                is_clear = bool((best_two[:, 0] - best_two[:, 1] >= self.min_gap).all())
                if is_clear and len(set(tokens)) >= min(MIN_DISTINCT_TOKENS, num_tokens):
                    drawn[number] = prompt, tokens
        assert len(drawn) == len(wanted), "no prompt has a clear continuation"
        return [drawn[number] for number in range(len(wanted))]

    def draw_jobs(self, specs: Sequence[RequestSpec]) -> list[Job]:
        """Try seeds, from those of the requests on, until all n continuations of each request are clear."""
        jobs: dict[str, Job] = {}
        missing = list(specs)
        for _ in range(20):
            sequences = [(spec, index) for spec in missing for index in range(spec.params.n)]
            drawn = iter(self._sample(sequences) if sequences else [])
            for spec in missing:
                expected = list(islice(drawn, spec.params.n))
                clear = [tokens for tokens in expected if tokens is not None]
                if len(clear) == len(expected):
                    jobs[spec.request_id] = Job(spec, clear)
            missing = [_with_next_seed(spec) for spec in missing if spec.request_id not in jobs]
        assert len(jobs) == len(specs), "no seed has clear continuations"
        return [jobs[spec.request_id] for spec in specs]

    def generate(
        self, prompt: Sequence[int], num_tokens: int, eos_token_ids: Sequence[int] = ()
    ) -> tuple[list[int], Tensor]:
        """Return Transformers' greedy tokens and their logits `[num_tokens, vocab_size]`."""
        (generated,) = self.generate_all([prompt], num_tokens, eos_token_ids)
        return generated

    @torch.inference_mode()
    def generate_all(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, eos_token_ids: Sequence[int] = ()
    ) -> list[tuple[list[int], Tensor]]:
        """As `generate`, for a batch of prompts, of which the shorter ones are padded in front."""
        self._model.generation_config.eos_token_id = list(eos_token_ids) or None
        token_ids, mask = _padded(prompts)
        output = self._model.generate(
            token_ids,
            attention_mask=mask,
            max_new_tokens=num_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = output.sequences[:, token_ids.shape[1] :].tolist()
        return list(zip(tokens, torch.stack(output.logits, dim=1), strict=True))

    @torch.inference_mode()
    def _sample(self, sequences: Sequence[tuple[RequestSpec, int]]) -> list[list[int] | None]:
        """Draw sequences of requests, named by their indices, from Transformers' logits by the engine's rule.

        None stands for one in which rounding might decide.
        """
        token_ids, mask = _padded([spec.prompt_token_ids for spec, _ in sequences])
        tokens: list[list[int]] = [[] for _ in sequences]
        rows: list[Tensor] = []
        draws: list[list[SampleSpec]] = []
        positions, cache = (mask.cumsum(1) - 1).clamp(min=0), None
        for _ in range(max(spec.params.max_tokens or 0 for spec, _ in sequences)):
            output = self._model(
                token_ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
            cache = output.past_key_values
            rows.append(output.logits[:, -1])
            draws.append([_sample_spec(*one, so_far) for one, so_far in zip(sequences, tokens, strict=True)])
            drawn = _draw(rows[-1], draws[-1])
            for so_far, token_id in zip(tokens, drawn, strict=True):
                so_far.append(token_id)
            token_ids = torch.tensor(drawn)[:, None]
            mask = torch.cat((mask, torch.ones_like(token_ids)), dim=1)
            positions = positions[:, -1:] + 1
        is_clear = _are_clear(rows, draws, torch.tensor(tokens).T)
        return [
            so_far[: spec.params.max_tokens] if bool(column[: spec.params.max_tokens].all()) else None
            for (spec, _), so_far, column in zip(sequences, tokens, is_clear.T, strict=True)
        ]

    def _draw_prompt(self, length: int, prefix: Sequence[int], seed: int) -> tuple[int, ...]:
        return *prefix, *make_prompt(length - len(prefix), seed=seed, vocab_size=self._vocab_size)

    @cached_property
    def _model(self) -> PreTrainedModel:
        return reference_model(self.folder)

    @property
    def _vocab_size(self) -> int:
        return self._model.config.vocab_size


def _sample_spec(request: RequestSpec, index: int, tokens: Sequence[int]) -> SampleSpec:
    """How the token after `tokens` is drawn; its rules know nothing of the draws before."""
    params = request.params
    assert params.seed is not None
    rules = SamplingRules(
        params=params,
        bad_words=request.bad_words,
        thinking=request.thinking,
        ending_token_ids=params.stop_token_ids,
    )
    history = SamplingHistory(
        seq_id=SeqId(f"{request.request_id} after {len(tokens)} tokens", index),
        rules=rules,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=tuple(tokens),
    )
    return SampleSpec(
        seed=sequence_seed(params.seed, index),
        position=len(request.prompt_token_ids) + len(tokens),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        history=history if request.bad_words or request.thinking or params.changes_logits else None,
    )


def _draw(logits: Tensor, specs: Sequence[SampleSpec]) -> list[int]:
    drawn = Sampler().sample(logits.clone(), specs)
    assert not drawn.failures
    token_ids: list[int] = drawn.token_ids.tolist()
    return token_ids


def _are_clear(rows: Sequence[Tensor], draws: Sequence[Sequence[SampleSpec]], tokens: Tensor) -> Tensor:
    """Which of the `tokens` `[num_steps, num_sequences]` stay when each logit moves by up to ROUNDING."""
    logits, specs = torch.cat(list(rows)), [spec for step in draws for spec in step]
    generator = torch.Generator().manual_seed(0)
    is_clear = torch.ones_like(tokens, dtype=torch.bool)
    for _ in range(4):
        move = (torch.rand(logits.shape, generator=generator) * 2 - 1) * ROUNDING
        is_clear &= torch.tensor(_draw(logits + move, specs)).view(tokens.shape) == tokens
    return is_clear


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids `[num_prompts, longest]`, each prompt at the end of its row, and a mask of where it is."""
    longest = max(map(len, prompts))
    token_ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(token_ids), torch.tensor(mask)


def _with_next_seed(spec: RequestSpec) -> RequestSpec:
    assert spec.params.seed is not None
    return replace(spec, params=replace(spec.params, seed=spec.params.seed + 1))
