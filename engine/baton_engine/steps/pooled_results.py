"""Pooling of a step: the rows that are needed, the types of its tokens, and the results of its slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from baton_core.worker.step_plan import PooledValues, SequenceSlice, StepPlan, StepResult
from baton_engine.pooling.pooler import Pooler
from baton_kernels.interface.upload import upload

_NOT_FINITE = "the model computed numbers that are not finite"


def pooled_rows(pooler: Pooler, slices: Sequence[SequenceSlice]) -> list[int] | None:
    """Return the tokens whose hidden states are pooled, at least one; None if those of all tokens are."""
    rows: list[int] = []
    start = 0
    for piece in slices:
        end = start + piece.num_scheduled_tokens
        if piece.pooling is not None:
            needed = pooler.needed(piece.pooling, piece.num_scheduled_tokens)
            rows += range(start + needed.start, start + needed.stop)
        start = end
    return None if len(rows) == start else rows or [start - 1]


def step_token_types(slices: Sequence[SequenceSlice], device: torch.device) -> Tensor | None:
    """Return `[num_tokens] int64`, the type of each token; None where all are 0."""
    if not any(piece.pooling is not None and piece.pooling.type_one_from is not None for piece in slices):
        return None
    types = np.zeros(sum(piece.num_scheduled_tokens for piece in slices), np.int64)
    start = 0
    for piece in slices:
        end = start + piece.num_scheduled_tokens
        if piece.pooling is not None and piece.pooling.type_one_from is not None:
            types[start + max(0, piece.pooling.type_one_from - piece.start) : end] = 1
        start = end
    (uploaded,) = upload((types,), device)
    return uploaded


def pooled_result(pooler: Pooler, hidden: Tensor, plan: StepPlan) -> StepResult:
    """Pool the slices that end a prompt, given `hidden` `[num_rows, hidden_size]` of `pooled_rows`.

    A slice whose numbers are not finite has the reason in the place of a result.
    """
    pooled: dict[int, PooledValues] = {}
    failures: dict[int, str] = {}
    start = 0
    for number, piece in enumerate(plan.slices):
        if piece.pooling is None:
            continue
        end = start + len(pooler.needed(piece.pooling, piece.num_scheduled_tokens))
        values = pooler.pool(hidden[start:end], piece.token_ids, piece.pooling)
        start = end
        if bool(values.isfinite().all()):
            contiguous = values.contiguous()
            pooled[number] = PooledValues(shape=tuple(values.shape), values=contiguous.numpy().tobytes())
        else:
            failures[number] = _NOT_FINITE
    return StepResult(
        step_id=plan.step_id,
        sampled=((),) * len(plan.slices),
        pooled=pooled,
        failures=failures,
        broken=frozenset(failures),
    )
