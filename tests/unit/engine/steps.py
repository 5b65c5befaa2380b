"""Builders of runners, step plans and the rules of draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.sampling_rules import SamplingRules, ThinkingBudget
from baton_core.worker.step_plan import (
    LogprobsSpec,
    SampleSpec,
    SamplingHistory,
    SeqId,
    SequenceSlice,
    StepPlan,
)
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.model import Model
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.sampling.sampler import Sampler
from baton_engine.steps.runner import ModelRunner
from baton_kernels.selection import select_kernels

BLOCK_SIZE = 8


def load_model(
    folder: Path, dtype: torch.dtype = torch.float32, max_model_len: int | None = None
) -> tuple[Model, KVSpec]:
    """Return a folder's model and the shape of its cache."""
    config = read_model_config(folder, max_model_len)
    model = build_model(config, WeightReader(folder, dtype), select_kernels("cpu").layers)
    return model, config.kv_spec(BLOCK_SIZE, str(dtype).removeprefix("torch."))


def make_runner(folder: Path, num_blocks: int = 32, dtype: torch.dtype = torch.float32) -> ModelRunner:
    """Load a runner whose pool starts as NaN: whoever reads what nobody wrote is found out."""
    model, spec = load_model(folder, dtype)
    kv_pool = torch.full((num_blocks * len(spec.groups), *spec.block_shape), torch.nan, dtype=dtype)
    kernels = select_kernels("cpu")
    return ModelRunner(model, kernels.attention, kv_pool, spec, Sampler(kernels.sampling))


def make_spec(
    position: int = 0,
    *,
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    logprobs: LogprobsSpec | None = None,
    history: SamplingHistory | None = None,
) -> SampleSpec:
    return SampleSpec(
        seed=seed,
        position=position,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        logprobs=logprobs,
        history=history,
    )


def make_rules(
    *,
    bad_words: Sequence[tuple[int, ...]] = (),
    thinking: ThinkingBudget | None = None,
    ending: Sequence[int] = (),
    **params: Any,
) -> SamplingRules:
    """Rules of a request; `params` are fields of `SamplingParams`."""
    return SamplingRules(
        params=SamplingParams(**{"max_tokens": None, **params}),
        bad_words=tuple(bad_words),
        thinking=thinking,
        ending_token_ids=tuple(ending),
    )


def make_history(
    output: Sequence[int] = (), *, prompt: Sequence[int] = (1, 2), name: str = "a", **rules: Any
) -> SamplingHistory:
    """A draw after `output`; `rules` are those of `make_rules`, or `rules` made by it."""
    return SamplingHistory(
        seq_id=SeqId(name, 0),
        rules=rules.pop("rules", None) or make_rules(**rules),
        prompt_token_ids=tuple(prompt),
        output_token_ids=tuple(output),
    )


def group_tables(block_ids: Sequence[int], num_groups: int) -> tuple[tuple[int, ...], ...]:
    """Give each KV group blocks of its own."""
    return tuple(tuple(block * num_groups + group for block in block_ids) for group in range(num_groups))


def make_slice(
    token_ids: Sequence[int],
    block_ids: Sequence[int],
    *,
    start: int = 0,
    samples: Sequence[SampleSpec] = (),
    name: str = "a",
    num_groups: int = 1,
    prompt_targets: Sequence[int] = (),
    prompt_logprobs: LogprobsSpec | None = None,
) -> SequenceSlice:
    num_blocks = -(-(start + len(token_ids)) // BLOCK_SIZE)
    return SequenceSlice(
        seq_id=SeqId(name, 0),
        token_ids=tuple(token_ids),
        start=start,
        block_tables=group_tables(block_ids[:num_blocks], num_groups),
        samples=tuple(samples),
        prompt_targets=tuple(prompt_targets),
        prompt_logprobs=prompt_logprobs,
    )


def make_plan(*slices: SequenceSlice, block_copies: Sequence[tuple[int, int]] = ()) -> StepPlan:
    return StepPlan(step_id=7, slices=slices, block_copies=tuple(block_copies))


def generate(
    runner: ModelRunner,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    block_ids: Sequence[int] = (5, 2, 9, 0, 11, 3, 7, 1),
    chunk_len: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[int]:
    """Compute a prompt, whole or in chunks, then one token per step; return the new tokens."""
    chunk_len = chunk_len or len(prompt)
    tokens = list(prompt)
    start = 0
    while len(tokens) < len(prompt) + num_tokens:
        stop = min(start + chunk_len, len(tokens))
        is_last = stop == len(tokens)
        spec = make_spec(stop, temperature=temperature, seed=seed)
        piece = make_slice(
            tokens[start:stop],
            block_ids,
            start=start,
            samples=(spec,) if is_last else (),
            num_groups=len(runner.spec.groups),
        )
        (sampled,) = runner.execute(make_plan(piece)).sampled
        tokens += sampled
        start = stop
    return tokens[len(prompt) :]
