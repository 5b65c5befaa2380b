"""Log-probabilities of sampled tokens and of prompt tokens.

Tokens rank by (value descending, id ascending), so that no two of a position have the same rank and the most
likely ones come in the order of their ranks. Called from the engine thread only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import torch
from torch import Tensor

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import LogprobsSpec
from baton_kernels.interface.upload import upload

MAX_ROWS: Final = 64
"""Rows of logits per pass: 64 MiB in float32 where the vocabulary has 2**18 tokens."""
_ID_SPAN: Final = 1 << 32


class LogprobsMode(StrEnum):
    """The kind of log-probabilities; names and meanings are vLLM's."""

    RAW_LOGPROBS = "raw_logprobs"
    """Log-softmax of the logits as the model gives them, but for tokens that the grammar forbids."""
    RAW_LOGITS = "raw_logits"
    """These logits themselves."""
    PROCESSED_LOGPROBS = "processed_logprobs"
    """Log-softmax of the logits after rules, temperature and filters."""
    PROCESSED_LOGITS = "processed_logits"

    @property
    def is_processed(self) -> bool:
        return self in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)

    def values(self, logits: Tensor) -> Tensor:
        """Return `[num_rows, vocab_size] float32` of logits of that shape."""
        if self in (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS):
            return logits.float()
        return torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def chunks(num_rows: int) -> Iterator[slice]:
    """Split rows into parts of at most MAX_ROWS."""
    for start in range(0, num_rows, MAX_ROWS):
        yield slice(start, start + MAX_ROWS)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of each row: its own token, then the most likely ones, then the requested ones."""

    num_top: int
    num_requested: int
    of_row: list[slice]
    """Columns after the first that a row asks for."""

    @classmethod
    def of(cls, specs: Sequence[LogprobsSpec], vocab_size: int) -> _Columns:
        tops = [0 if spec.token_ids else _num_top(spec, vocab_size) for spec in specs]
        first_requested = 1 + max(tops)
        of_row = [
            slice(first_requested, first_requested + len(spec.token_ids))
            if spec.token_ids
            else slice(1, 1 + num_top)
            for spec, num_top in zip(specs, tops, strict=True)
        ]
        return cls(first_requested - 1, max(len(spec.token_ids) for spec in specs), of_row)


def gather_logprobs(
    values: Tensor, token_ids: Sequence[int], specs: Sequence[LogprobsSpec]
) -> list[PositionLogprobs]:
    """Return what `specs` ask of each row of `values` `[num_rows, vocab_size] float32`.

    `token_ids` are those that stand at the rows' positions; all tokens must be of the vocabulary. Excluded
    tokens, whose value is minus infinity, are not among the most likely ones.
    """
    columns = _Columns.of(specs, values.shape[1])
    named = np.zeros((len(specs), 1 + columns.num_requested), np.int64)
    named[:, 0] = token_ids
    for row, spec in enumerate(specs):
        named[row, 1 : 1 + len(spec.token_ids)] = spec.token_ids
    (on_device,) = upload((named,), values.device)
    ids, ranks = _look_up(_sort_keys(values), on_device, columns.num_top)
    # Ids and ranks are exact in float64, so that one transfer brings all three.
    packed = torch.stack((ids.double(), ranks.double(), values.gather(1, ids).double())).cpu().numpy()
    all_ids, all_ranks = packed[:2].astype(np.int64).tolist()
    found: list[PositionLogprobs] = []
    for row, (of_values, of_row) in enumerate(zip(packed[2].tolist(), columns.of_row, strict=True)):
        if not specs[row].token_ids:
            of_row = slice(1, of_row.stop - of_values[of_row].count(-math.inf))
        found.append(
            PositionLogprobs(
                token_ids=(all_ids[row][0], *all_ids[row][of_row]),
                logprobs=(of_values[0], *of_values[of_row]),
                ranks=(all_ranks[row][0], *all_ranks[row][of_row]),
            )
        )
    return found


def _num_top(spec: LogprobsSpec, vocab_size: int) -> int:
    return vocab_size if spec.num_top < 0 else min(spec.num_top, vocab_size)


def _look_up(keys: Tensor, named: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """Return ids and ranks, `[num_rows, 1 + num_top + num_requested]` each, in the order of `_Columns`.

    `named` `[num_rows, 1 + num_requested]` are the rows' own tokens and the requested ones.
    """
    named_keys = keys.gather(1, named)
    if named.shape[1] > 1:
        best = keys.sort(dim=1, descending=True).values
        named_ranks = torch.searchsorted(best.neg(), named_keys.neg()) + 1
        best = best[:, :num_top]
    else:
        best = keys.topk(num_top, dim=1).values
        named_ranks = (keys > named_keys).sum(dim=1, keepdim=True) + 1
    top_ids = _ID_SPAN - 1 - (best & _ID_SPAN - 1)
    top_ranks = torch.arange(1, num_top + 1, device=keys.device).expand(len(keys), -1)
    ids = torch.cat((named[:, :1], top_ids, named[:, 1:]), dim=1)
    return ids, torch.cat((named_ranks[:, :1], top_ranks, named_ranks[:, 1:]), dim=1)


def _sort_keys(values: Tensor) -> Tensor:
    """Return `[num_rows, vocab_size] int64` that order tokens by value, then by falling id; all differ."""
    bits = (values + 0.0).view(torch.int32)  # of the two zeros, the positive one
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)  # negative numbers have their bits the other way round
    token_ids = torch.arange(values.shape[1], device=values.device)
    return bits.long().mul_(_ID_SPAN).add_(_ID_SPAN - 1 - token_ids)
