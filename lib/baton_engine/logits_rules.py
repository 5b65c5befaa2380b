"""Changes the logits of draws as their rules say, in vLLM's order.

1. the form that the output must have (a grammar's mask), together with `allowed_token_ids`
2. `bad_words`, then end tokens before `min_tokens`
3. `logit_bias`, then custom logits processors
4. penalties: repetition over prompt and output, then frequency and presence over the output
5. the end of thinking, where its budget is spent: alone possible, whatever came before
Temperature and filters follow in the kernel. Where all tokens are excluded, the token that ends the form is
drawn, without one the lowest end token that the rules name, else token 0.
Source: vllm.v1.sample.sampler; grammars precede the sampler there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton_core.errors import BatonError
from baton_core.worker.step_plan import DrawHistory
from baton_engine.draw_state import DrawState, DrawStates
from baton_engine.structured.interface import TokenMask
from baton_kernels.upload import upload

_LEAST_REPETITION: Final = 1e-20
"""Smaller ones would make logits infinite, or those of excluded tokens no number."""
_States = dict[int, DrawState]
"""By row of the logits."""


class LogitsRules:
    """Applies the rules of a step's draws; called from the engine thread only."""

    def __init__(self, states: DrawStates | None = None) -> None:
        self._states = states if states is not None else DrawStates()

    def apply(self, logits: Tensor, histories: Mapping[int, DrawHistory]) -> dict[int, str]:
        """Change the rows of `histories` in `logits` `[num_rows, vocab_size] float32`, and no others.

        The logits are contiguous. Returns why rows failed, by row; what such a row then holds means nothing.
        """
        failures: dict[int, str] = {}
        states: _States = {}
        masks: dict[int, TokenMask] = {}
        blocked: list[tuple[int, int]] = []
        for row, history in histories.items():
            try:
                state = self._states.take(history, logits.shape[1])
                mask, tokens = state.exclusions()
            except Exception as error:
                failures[row] = _reason(error)
                continue
            states[row] = state
            blocked += [(row, token_id) for token_id in tokens]
            if mask is not None:
                masks[row] = mask
        self._states.trim(len(histories))
        _mask(logits, masks)
        _block(logits, blocked)
        _add_biases(logits, states)
        failures |= _process(logits, states)
        _penalise(logits, states)
        _keep_one(logits, states)
        _force(logits, states)
        return failures


def _mask(logits: Tensor, masks: dict[int, TokenMask]) -> None:
    if not masks:
        return
    rows, words = _upload(logits, np.fromiter(masks, np.int64), np.stack(list(masks.values())))
    is_excluded = unpack_bits(~words)[:, : logits.shape[1]]
    logits[rows] = logits[rows].masked_fill_(is_excluded, -torch.inf)


def unpack_bits(words: Tensor) -> Tensor:
    """Return the bits of `words` `[num_rows, num_words] int32`, the lowest first, as `bool`."""
    if words.device.type == "cpu":  # NumPy unpacks with vector instructions
        bits = np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(bits).view(torch.bool)
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return (words[:, :, None] >> shifts & 1).bool().view(len(words), -1)


def _block(logits: Tensor, pairs: list[tuple[int, int]]) -> None:
    """Exclude (row, token) pairs."""
    if pairs:
        logits[_pairs(logits, pairs)] = -torch.inf


def _add_biases(logits: Tensor, states: _States) -> None:
    biased = {row: state.bias for row, state in states.items() if state.bias is not None}
    if not biased:
        return
    lengths = [len(bias.token_ids) for bias in biased.values()]
    rows, token_ids, values = _upload(
        logits,
        np.repeat(np.fromiter(biased, np.int64), lengths),
        np.concatenate([bias.token_ids for bias in biased.values()]),
        np.concatenate([bias.values for bias in biased.values()]),
    )
    logits[rows, token_ids] += values.float()


def _process(logits: Tensor, states: _States) -> dict[int, str]:
    """Call the requests' own processors; returns why some failed, by row."""
    failures = {}
    for row, state in states.items():
        try:
            for processor in state.processors:
                logits[row] = processor(state.history, logits[row])
        except Exception as error:
            failures[row] = _reason(error)
    return failures


def _penalise(logits: Tensor, states: _States) -> None:
    counts = {row: state.counts for row, state in states.items() if state.counts is not None}
    lengths = [len(of_row.token_ids) for of_row in counts.values()]
    if not sum(lengths):
        return
    params = [states[row].rules.params for row in counts]
    penalties = [(one.repetition_penalty, one.frequency_penalty, one.presence_penalty) for one in params]
    rows, row_lengths, token_ids, times, by_row = _upload(
        logits,
        np.fromiter(counts, np.int64),
        np.array(lengths, np.int64),
        np.concatenate([of_row.token_ids for of_row in counts.values()]),
        np.concatenate([of_row.counts for of_row in counts.values()]),
        np.array(penalties, np.float64),
    )
    places = torch.arange(len(counts), device=logits.device)
    places = places.repeat_interleave(row_lengths, output_size=sum(lengths))
    repetition, frequency, presence = by_row.float()[places].unbind(1)
    repetition = repetition.clamp(min=_LEAST_REPETITION)
    index = rows[places] * logits.shape[1] + token_ids
    values = logits.view(-1).index_select(0, index)
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits.view(-1).scatter_(0, index, values - frequency * times - presence * (times > 0))


def _keep_one(logits: Tensor, states: _States) -> None:
    """Give a token to rows in which a request's own processors have excluded all."""
    pairs = [(row, state.last_token_id) for row, state in states.items() if state.processors]
    if pairs:
        index = _pairs(logits, pairs)
        is_empty = logits[index[0]].amax(dim=1) == -torch.inf
        logits[index] = logits[index].masked_fill(is_empty, 0.0)


def _force(logits: Tensor, states: _States) -> None:
    forced = {row: state.forced_token_id for row, state in states.items()}
    pairs = [(row, token_id) for row, token_id in forced.items() if token_id is not None]
    if pairs:
        index = _pairs(logits, pairs)
        logits[index[0]] = -torch.inf
        logits[index] = 0.0


def _pairs(logits: Tensor, pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Return the index of (row, token) pairs."""
    rows, token_ids = _upload(logits, *np.array(pairs, np.int64).T.copy())
    return rows, token_ids


def _upload(logits: Tensor, *arrays: NDArray[Any]) -> list[Tensor]:
    return upload(arrays, logits.device)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, BatonError) else f"{type(error).__name__}: {error}"
