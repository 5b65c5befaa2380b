"""Beam search: the most likely completions, found token by token from the log-probabilities of requests.

In every round each beam is a prompt of its own; the prefix cache keeps what they have in common.
Source: the search is that of Transformers' `generate` with `num_beams` and `early_stopping="never"`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baton.inputs import TokensPrompt
from baton.logprobs import LogprobsOnePosition
from baton.lora import LoRARequest
from baton.outputs import RequestOutput
from baton.sampling_params import BeamSearchParams, SamplingParams
from baton_core.requests.finish import FinishReason


class Generate(Protocol):
    """Complete prompts with the same parameters, each with the adapter of its place in the list."""

    def __call__(
        self,
        prompts: list[TokensPrompt],
        sampling_params: SamplingParams,
        *,
        lora_request: list[LoRARequest | None],
    ) -> list[RequestOutput]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchSequence:
    """One completion, with its prompt."""

    tokens: list[int]
    """Prompt and completion."""
    logprobs: list[LogprobsOnePosition]
    """The tokens that were considered at each position of the completion."""
    cum_logprob: float = 0.0
    text: str | None = None
    """The text of `tokens`."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The end token that ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchOutput:
    """The completions of one prompt, the best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A completion on its way."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[LogprobsOnePosition, ...] = ()
    cumulative: float = 0.0

    def extend(self, token_id: int, entries: LogprobsOnePosition) -> Beam:
        return Beam(
            token_ids=(*self.token_ids, token_id),
            logprobs=(*self.logprobs, entries),
            cumulative=self.cumulative + entries[token_id].logprob,
        )


class BeamSearch:
    """The search for one prompt's completions."""

    def __init__(
        self,
        prompt: TokensPrompt,
        params: BeamSearchParams,
        *,
        max_tokens: int,
        end_ids: Collection[int],
        adapter: LoRARequest | None = None,
    ) -> None:
        """`end_ids` end a completion, as does its `max_tokens`-th token."""
        self.adapter = adapter
        """The adapter of each of its prompts."""
        self.beams = [Beam()]
        """The beams that continue; empty when the search is over."""
        self._prompt = prompt
        self._params = params
        self._max_tokens = max_tokens
        self._end_ids = () if params.ignore_eos else end_ids
        self._finished: list[tuple[float, Beam, int | None]] = []
        """Best first, each with its score and its end token."""

    def prompts(self) -> list[TokensPrompt]:
        """The next prompts: one token is to be generated after each."""
        ids = tuple(self._prompt["prompt_token_ids"])
        return [{**self._prompt, "prompt_token_ids": ids + beam.token_ids} for beam in self.beams]

    def advance(self, entries: Sequence[LogprobsOnePosition]) -> None:
        """Take the most likely next tokens of each beam, the same number as beams."""
        width = self._params.beam_width
        candidates = [
            beam.extend(token_id, position)
            for beam, position in zip(self.beams, entries, strict=True)
            for token_id in position
        ]
        candidates.sort(key=lambda beam: -beam.cumulative)
        going_on = []
        for rank, beam in enumerate(candidates[: 2 * width]):
            if beam.token_ids[-1] not in self._end_ids:
                going_on.append(beam)
            elif rank < width:
                self._finish(beam, beam.token_ids[-1])
        self.beams = going_on[:width]
        if len(candidates[0].token_ids) >= self._max_tokens:
            for beam in self.beams:
                self._finish(beam, None)
            self.beams = []
        elif self._is_decided():
            self.beams = []

    def output(self, decode: Callable[[Sequence[int]], str]) -> BeamSearchOutput:
        """The result of the search."""
        return BeamSearchOutput(sequences=[self._sequence(*found, decode) for found in self._finished])

    def _finish(self, beam: Beam, end_id: int | None) -> None:
        self._finished.append((self._score(beam.cumulative, len(beam.token_ids)), beam, end_id))
        self._finished.sort(key=lambda found: -found[0])
        del self._finished[self._params.beam_width :]

    def _score(self, cumulative: float, num_tokens: int) -> float:
        score: float = cumulative / num_tokens**self._params.length_penalty
        return score

    def _is_decided(self) -> bool:
        """True if no beam can beat the completions there are: log-probabilities only fall."""
        if len(self._finished) < self._params.beam_width or not self.beams:
            return not self.beams
        best = self.beams[0]
        longest = self._max_tokens if self._params.length_penalty > 0 else len(best.token_ids)
        return self._finished[-1][0] >= self._score(best.cumulative, longest)

    def _sequence(
        self, score: float, beam: Beam, end_id: int | None, decode: Callable[[Sequence[int]], str]
    ) -> BeamSearchSequence:
        shown = len(beam.token_ids)
        if end_id is not None and not self._params.include_stop_str_in_output:
            shown -= 1
        tokens = [*self._prompt["prompt_token_ids"], *beam.token_ids[:shown]]
        return BeamSearchSequence(
            tokens=tokens,
            logprobs=list(beam.logprobs),
            cum_logprob=beam.cumulative,
            text=decode(tokens),
            finish_reason=str(FinishReason.LENGTH if end_id is None else FinishReason.STOP),
            stop_reason=end_id,
        )


def run_searches(
    searches: Sequence[BeamSearch],
    params: BeamSearchParams,
    generate: Generate,
) -> None:
    """Advance all searches, a round of one token at a time, until they are over."""
    asked = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * params.beam_width, detokenize=True)
    while any(search.beams for search in searches):
        prompts = [prompt for search in searches for prompt in search.prompts()]
        adapters = [search.adapter for search in searches for _ in search.beams]
        outputs = iter(generate(prompts, asked, lora_request=adapters))
        for search in searches:
            if search.beams:
                search.advance([_first_position(next(outputs)) for _ in search.beams])


def _first_position(output: RequestOutput) -> LogprobsOnePosition:
    """The log-probabilities of the one token that was asked for, without that of the token itself again."""
    logprobs = output.outputs[0].logprobs
    assert isinstance(logprobs, list), "they were asked for, and not flat"
    return logprobs[0]
