"""A worker that gives whatever is asked for, as much of it as the request allows, without a model."""

from __future__ import annotations

from collections.abc import Iterable

from baton_core.requests.finish import FinishReason
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import PromptLogprobs, RequestSpec, SequenceOutput, TokenBatch
from baton_core.sessions.session import SessionTimings
from tests.integration.scripted_worker import ScriptedWorker

PATIENT = SessionTimings(dead_after_s=120.0, max_unacknowledged=2**20)
"""A worker that gives all tokens of an answer at once waits long for its router, with many messages."""
VOCAB_SIZE = 4096
"""Size of the bundled model's vocabulary."""
_TOKENS: tuple[int, ...] = tuple(range(300, 4000))


class HeavyWorker(ScriptedWorker):
    """Ends every sequence at its `max_tokens`, with all log-probabilities that are asked for."""

    def __init__(self) -> None:
        super().__init__(
            "heavy", timings=PATIENT, max_model_len=2**17, vocab_size=VOCAB_SIZE, num_blocks=2**20
        )

    def _say_first(self, spec: RequestSpec) -> None:
        if (num_top := spec.params.prompt_logprobs) is not None:
            entries = tuple(_entry(token_id, num_top) for token_id in spec.prompt_token_ids[1:])
            self.client.send(
                self.router_id, PromptLogprobs(request_id=spec.request_id, start=1, entries=entries)
            )
        super()._say_first(spec)

    def _decode(self, spec: RequestSpec, indices: Iterable[int], *, begin: int = 1) -> None:
        indices = list(indices)
        for step in range(begin, self._num_tokens(spec)):
            outputs = tuple(self._output(spec, index, step, step + 1) for index in indices)
            self._send(TokenBatch(outputs=outputs))

    def _output(self, spec: RequestSpec, index: int, start: int, end: int) -> SequenceOutput:
        token_ids = tuple(_TOKENS[(index + place) % len(_TOKENS)] for place in range(start, end))
        num_top = spec.params.logprobs
        return SequenceOutput(
            request_id=spec.request_id,
            index=index,
            token_ids=token_ids,
            finish_reason=FinishReason.LENGTH if end == self._num_tokens(spec) else None,
            logprobs=() if num_top is None else tuple(_entry(token_id, num_top) for token_id in token_ids),
        )

    def _num_tokens(self, spec: RequestSpec) -> int:
        room = self.info.max_model_len - len(spec.prompt_token_ids)
        return room if spec.params.max_tokens is None else min(room, spec.params.max_tokens)


_MADE: dict[tuple[int, int], PositionLogprobs] = {}


def _entry(token_id: int, num_top: int) -> PositionLogprobs:
    made = _MADE.get((token_id, num_top))
    if made is None:
        others = ((token_id + place) % VOCAB_SIZE for place in range(num_top))
        made = _MADE[token_id, num_top] = PositionLogprobs(
            token_ids=(token_id, *others),
            logprobs=(-0.30103001, *(-1.25 - place / 7 for place in range(num_top))),
            ranks=(1, *range(1, num_top + 1)),
        )
    return made
