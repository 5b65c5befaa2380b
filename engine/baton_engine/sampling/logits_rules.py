"""Logits processing in vLLM's order.

1. the mask of the output's grammar, together with `allowed_token_ids`
2. `bad_words`, then end tokens before `min_tokens`
3. `logit_bias`, then custom logits processors: functions of the request, then classes
4. penalties: repetition over prompt and output, then frequency and presence over the output
5. the end of thinking, where its budget is spent: the only token that is left
6. classes that never change the most likely token, after the temperature
Temperature and filters follow in the kernel. Where all tokens are excluded, the row fails: its request ends
with an error that names the fields.
Source: vllm.v1.sample.sampler; grammars precede the sampler there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton_core.worker.step_plan import SamplingHistory
from baton_engine.sampling.processor_batch import BatchProcessors
from baton_engine.sampling.sampling_state import SamplingState, SamplingStates
from baton_engine.structured.interface import TokenMask
from baton_kernels.interface.upload import upload

_MIN_REPETITION: Final = 1e-20
_MAX_REPETITION: Final = 1e20
_MAX_BIAS: Final = 1e10
"""Beyond these bounds, together too, logits would be infinite, or those of excluded tokens no number."""
_States = dict[int, SamplingState]
"""Sampling states by row of the logits."""


class LogitsRules:
    """Applies the sampling rules of a step's rows; called from the engine thread only."""

    def __init__(
        self, states: SamplingStates | None = None, processors: BatchProcessors | None = None
    ) -> None:
        self._states = states if states is not None else SamplingStates()
        self._processors = processors or BatchProcessors()
        self._grammar_masks: dict[int, TokenMask] = {}

    def apply(self, logits: Tensor, histories: Mapping[int, SamplingHistory]) -> dict[int, Exception]:
        """Change the rows of `histories` in `logits` `[num_rows, vocab_size] float32`, and no others.

        The logits are contiguous. Returns the errors of rows that failed, by row; such a row's contents are
        undefined.
        """
        failures: dict[int, Exception] = {}
        states: _States = {}
        masks: dict[int, TokenMask] = {}
        self._grammar_masks = {}
        blocked: list[tuple[int, int]] = []
        for row, history in histories.items():
            try:
                state = self._states.take(history, logits.shape[1])
                mask, tokens = state.exclusions()
            except Exception as error:
                failures[row] = error
                continue
            states[row] = state
            blocked += [(row, token_id) for token_id in tokens]
            if mask is not None:
                masks[row] = mask
            if state.grammar_mask is not None:
                self._grammar_masks[row] = state.grammar_mask
        self._states.trim(len(histories))
        _mask(logits, masks)
        _block(logits, blocked)
        _add_biases(logits, states)
        failures |= _process(logits, states)
        histories = {row: state.history for row, state in states.items()}
        failures |= self._processors.update(histories) | self._processors.apply(logits)
        _penalize(logits, states)
        _force(logits, states)
        failures |= self._processors.apply_invariant(logits, histories)
        return failures

    def mask_grammars(self, logits: Tensor, rows: Sequence[int]) -> None:
        """Exclude what the grammars of the last `apply` alone forbid, in other logits of its rows.

        Mutates `logits` `[len(rows), vocab_size]`; `rows` are the numbers that their rows had there.
        """
        masks = self._grammar_masks
        _mask(logits, {place: masks[row] for place, row in enumerate(rows) if row in masks})


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
    logits[rows, token_ids] += values.clamp(-_MAX_BIAS, _MAX_BIAS).float()


def _process(logits: Tensor, states: _States) -> dict[int, Exception]:
    """Call the requests' own processors; returns the errors of those that failed, by row."""
    failures: dict[int, Exception] = {}
    for row, state in states.items():
        try:
            for processor in state.processors:
                logits[row] = processor(state.history, logits[row])
        except Exception as error:
            failures[row] = error
    return failures


def _penalize(logits: Tensor, states: _States) -> None:
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
    repetition = repetition.clamp(_MIN_REPETITION, _MAX_REPETITION)
    index = rows[places] * logits.shape[1] + token_ids
    values = logits.view(-1).index_select(0, index)
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits.view(-1).scatter_(0, index, values - frequency * times - presence * (times > 0))


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
