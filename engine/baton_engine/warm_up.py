"""Warm-up: steps of every kind that serving takes, run before the first request.

Lazy work is done here: kernels that are compiled or choose how to compute, decode graphs, libraries that are
imported, memory that is mapped. So no request waits for it, and no rate is learned from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Final

from baton_core.requests.pooling import PoolingModel, PoolingSpec
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.sampling_rules import SamplingRules
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.worker.step_plan import (
    LogprobsSpec,
    SampleSpec,
    SamplingHistory,
    SeqId,
    SequenceSlice,
    StepPlan,
)
from baton_engine.steps.decode_replay import MAX_GRAPH_SEQS
from baton_engine.steps.runner import ModelRunner

GRAMMAR: Final = StructuredOutputsParams(json_object=True)
"""A grammar that any model can follow; compiling it imports the library for most of them."""
SHORTEST: Final = 2
"""Tokens of the first prompt, as few as have log-probabilities of the prompt."""
PROMPTS_WITHIN_S: Final = 0.5
"""Prompts grow up to a whole step as long as the next one is predicted to be over by then: on a large model,
whose steps take longer, what starts lazily is a small part of them."""
SLOW_STEP_S: Final = 0.125
"""A model whose decode steps take longer is large: what starts lazily is a small part of each, too."""
GROWTH: Final = 4
"""Each prompt is so many times as long as the one before it."""
LARGE_BATCH: Final = 2 * MAX_GRAPH_SEQS
_LOGPROBS: Final = LogprobsSpec(num_top=1)
_RULES: Final = SamplingParams(repetition_penalty=1.1, min_tokens=1, max_tokens=2, logit_bias={0: 1.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpLimits:
    """The limits of the worker's steps."""

    max_model_len: int
    max_num_batched_tokens: int
    max_decode_rows: int
    """Sequences of the largest decode step, or tokens where some are drafted."""
    has_grammars: bool = False
    """Requests may ask for structured outputs."""
    pooling: PoolingModel | None = None
    """Description of what the model pools; None: it generates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampling:
    """A way in which the sequences of a step sample."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    logprobs: LogprobsSpec | None = None
    params: SamplingParams | None = None
    """Parameters of a request whose logits are changed before a token is sampled; None leaves them."""


_GREEDY: Final = _Sampling(temperature=0.0)
_PLAIN: Final = (_GREEDY, _Sampling(), _Sampling(top_k=2), _Sampling(top_p=0.5, min_p=0.01))
"""Sampling that is part of a replayed step."""
_OTHERS: Final[tuple[_Sampling, ...]] = (_Sampling(logprobs=_LOGPROBS), _Sampling(params=_RULES))


@dataclass(slots=True, kw_only=True)
class WarmUp:
    """Runs steps whose tokens all lie in block 0, which is zero afterwards: no sequence may have it yet."""

    runner: ModelRunner
    limits: WarmUpLimits
    clock: Callable[[], float] = field(default=time.monotonic)

    def run_prompts(self) -> None:
        """Run a short prompt whose log-probabilities are wanted, and prompts of growing length.

        The longest is as long as a step may be, if there is time for it.
        """
        limit = min(self.limits.max_num_batched_tokens, self.limits.max_model_len)
        num_tokens, spent_s = min(SHORTEST, limit), 0.0
        self._execute(self._prompt(num_tokens, is_told=self.limits.pooling is None))
        while True:
            step_s = self._timed(num_tokens)
            if step_s > PROMPTS_WITHIN_S:  # the model is large, or something is compiled for this size
                step_s = self._timed(num_tokens)
            spent_s += step_s
            if spent_s + GROWTH * step_s > PROMPTS_WITHIN_S or num_tokens == limit:
                break
            num_tokens = min(GROWTH * num_tokens, limit)
        self._clear()

    def _timed(self, num_tokens: int) -> float:
        """Run a prompt; return its time in seconds."""
        begun_s = self.clock()
        self._execute(self._prompt(num_tokens))
        return self.clock() - begun_s

    def run_decodes(self) -> None:
        """Run decode steps: of each number of sequences that has graphs, and of more; each way to sample.

        Of a large model only the smallest and the largest that have one are run.
        """
        others = _OTHERS
        if self.limits.has_grammars:
            others += (_Sampling(params=SamplingParams(structured_outputs=GRAMMAR)),)
        most = min(MAX_GRAPH_SEQS, self.limits.max_decode_rows)
        self._run_decode(1, _GREEDY)
        step_s = -self.clock()
        self._run_decode(1, _GREEDY)
        step_s += self.clock()
        if step_s > SLOW_STEP_S and most > 1:
            self._run_decode(most, *_PLAIN, *others)
        else:
            for number in range(max(most, len(_PLAIN), len(others))):
                for ways in (_PLAIN, others):
                    self._run_decode(min(number + 1, most), ways[number % len(ways)])
            if self.limits.max_decode_rows > most:
                self._run_decode(min(LARGE_BATCH, self.limits.max_decode_rows), _GREEDY)
        self._clear()

    def _run_decode(self, num_seqs: int, *samplings: _Sampling) -> None:
        """Run a step of sequences at the same position, which write the same values to block 0.

        They sample in these ways in turn.
        """
        start = min(self.runner.spec.block_size, self.limits.max_model_len) - 1
        ways = islice(cycle(samplings), num_seqs)
        slices = [self._slice(number, 1, start, way) for number, way in enumerate(ways)]
        self._execute(*slices, block_copies=((0, 0),))

    def _prompt(self, num_tokens: int, *, is_told: bool = False) -> SequenceSlice:
        return self._slice(0, num_tokens, 0, _GREEDY, _LOGPROBS if is_told else None)

    def _slice(
        self,
        index: int,
        num_tokens: int,
        start: int,
        sampling: _Sampling,
        prompt_logprobs: LogprobsSpec | None = None,
    ) -> SequenceSlice:
        spec, num_known = self.runner.spec, start + num_tokens
        model = self.limits.pooling
        num_blocks = -(-num_known // spec.block_size)
        seq_id = SeqId("warm-up", index)
        return SequenceSlice(
            seq_id=seq_id,
            token_ids=(0,) * num_tokens,
            start=start,
            block_tables=((0,) * num_blocks,) * len(spec.groups),
            samples=() if model else (_sample_spec(seq_id, num_known, sampling),),
            pooling=PoolingSpec(task=model.tasks[0]) if model else None,
            prompt_targets=(0,) * (num_tokens - 1) if prompt_logprobs else (),
            prompt_logprobs=prompt_logprobs,
        )

    def _execute(self, *slices: SequenceSlice, block_copies: tuple[tuple[int, int], ...] = ()) -> None:
        self.runner.execute(StepPlan(step_id=0, slices=slices, block_copies=block_copies))

    def _clear(self) -> None:
        if len(self.runner.kv_pool) > 1:  # other ranks may have pools of their own, whose block 1 is zero
            self._execute(block_copies=((1, 0),))
        self.runner.kv_pool[0] = 0.0


def _sample_spec(seq_id: SeqId, position: int, sampling: _Sampling) -> SampleSpec:
    history = None
    if sampling.params is not None:
        history = SamplingHistory(
            seq_id=seq_id,
            rules=SamplingRules(params=sampling.params, ending_token_ids=(0,)),
            prompt_token_ids=(0,) * position,
            output_token_ids=(),
        )
    return SampleSpec(
        seed=0,
        position=position,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        logprobs=sampling.logprobs,
        history=history,
    )
