"""Metrics of a router's requests by engine: the worker that decodes them or samples a token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from baton_core.distribution import Distribution
from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.requests.phases import PhaseReport
from baton_core.requests.request_context import Slo
from baton_core.sessions.router_messages import SequenceOutput, ToRouter
from baton_router.core.flow.request_record import RequestRecord
from baton_router.core.router_events import FailRequest, FinishRequest
from baton_router.metrics.latency_window import Latency, LatencyWindow
from baton_router.metrics.outliers import latencies_of
from baton_router.metrics.placement_metrics import PlacementMetrics
from baton_router.streams.client_stream import ClientStream
from baton_service import vllm_metrics as vllm
from baton_service.exposition import Exposition, Family
from baton_service.work_done import WorkDone

NO_SLO: Final = Slo()
NO_ENGINE: Final = ""
"""Engine label of requests that were never placed at a worker."""
_REFUSED: Final = (ErrorCode.OVERLOADED, ErrorCode.RATE_LIMIT_EXCEEDED)
KEPT_S: Final = 900.0
"""Figures of a worker that is gone are reported for so long."""
_DISTRIBUTIONS: Final = {
    vllm.TIME_TO_FIRST_TOKEN: vllm.FIRST_TOKEN_BOUNDS,
    vllm.INTER_TOKEN_LATENCY: vllm.TOKEN_GAP_BOUNDS,
    vllm.TIME_PER_OUTPUT_TOKEN: vllm.TOKEN_GAP_BOUNDS,
    vllm.E2E_LATENCY: vllm.LATENCY_BOUNDS,
    vllm.QUEUE_TIME: vllm.LATENCY_BOUNDS,
    vllm.INFERENCE_TIME: vllm.LATENCY_BOUNDS,
    vllm.PREFILL_TIME: vllm.LATENCY_BOUNDS,
    vllm.DECODE_TIME: vllm.LATENCY_BOUNDS,
    vllm.REQUEST_PROMPT_TOKENS: vllm.TOKENS_BOUNDS,
    vllm.REQUEST_GENERATION_TOKENS: vllm.TOKENS_BOUNDS,
    vllm.MAX_GENERATION_TOKENS: vllm.TOKENS_BOUNDS,
    vllm.PREFILL_COMPUTED: vllm.TOKENS_BOUNDS,
    vllm.PARAMS_N: vllm.SEQUENCES_BOUNDS,
    vllm.PARAMS_MAX_TOKENS: vllm.TOKENS_BOUNDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Totals of ended requests."""

    num_finished: int
    """Sequences that ended by themselves."""
    num_failed: int
    """Requests that were refused or failed; those whose client left are no failures."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that were found where the prompt was computed."""
    num_generated_tokens: int


class _Engine:
    """Metrics of one worker's requests."""

    def __init__(self) -> None:
        self.seen_s = -math.inf
        """The last report at which the worker was there, or the first one of these figures."""
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated = 0
        self.ends: Counter[str] = Counter()
        self.distributions = {family: Distribution(bounds) for family, bounds in _DISTRIBUTIONS.items()}
        self.token_gaps = self.distributions[vllm.INTER_TOKEN_LATENCY]

    def add(self, family: Family, value: float) -> None:
        self.distributions[family].add(max(value, 0.0))

    def add_totals(self, other: _Engine) -> None:
        """Mutate: count what another engine has counted, without its distributions."""
        self.num_prompt_tokens += other.num_prompt_tokens
        self.num_cached_tokens += other.num_cached_tokens
        self.num_generated += other.num_generated
        self.ends.update(other.ends)


class RequestMetrics:
    """Request metrics of one router, updated on its loop as tokens come and requests end."""

    def __init__(self, slo: Slo = NO_SLO) -> None:
        self.placements = PlacementMetrics()
        self._latencies = LatencyWindow(slo)
        self.num_finished_requests = 0
        self.num_failed_requests = 0
        """Requests that were refused or failed."""
        self.work = WorkDone()
        self.num_cut_tokens = 0
        """Tokens that came together with a stop string, after it."""
        self._engines: dict[str, _Engine] = {}
        self._forgotten = _Engine()
        """Totals of workers that are long gone."""
        self._worker_id = NO_ENGINE
        self._message_s = 0.0
        self._gap_s, self._num_gaps = 0.0, 0
        """Tokens of the current message that came so long after those before them, not counted yet."""

    @property
    def latencies(self) -> LatencyWindow:
        """Latencies of the last minutes."""
        self._count_gaps()
        return self._latencies

    def on_message(self, now: float, worker_id: str, message: ToRouter) -> None:
        """Count a worker's message; the next tokens in `on_tokens` are this worker's, and came now."""
        self._count_gaps()
        self._message_s, self._worker_id = now, worker_id
        if isinstance(message, PhaseReport):
            self.work.add(message)

    def on_tokens(self, stream: ClientStream, output: SequenceOutput) -> None:
        """Count the tokens that a stream just took, and time them against the sequence's previous tokens."""
        last_token_s, index = stream.last_token_s, output.index
        num_sent = stream.num_sent_tokens
        self._engine(self._worker_id).num_generated += num_sent - stream.num_counted_tokens
        stream.num_counted_tokens = num_sent
        if (last_s := last_token_s.get(index)) is not None:
            num_tokens = len(output.token_ids)
            gap_s = (self._message_s - last_s) / num_tokens
            if gap_s != self._gap_s:  # those of one step mostly come equally long after the step before
                self._count_gaps()
                self._gap_s = gap_s
            self._num_gaps += num_tokens
        last_token_s[index] = self._message_s

    def _count_gaps(self) -> None:
        if self._num_gaps:
            self._engine(self._worker_id).token_gaps.add(self._gap_s, self._num_gaps)
            self._latencies.on_tokens(self._message_s, self._gap_s, self._num_gaps)
            self._num_gaps = 0

    def on_ended(
        self,
        now: float,
        stream: ClientStream,
        end: FinishRequest | FailRequest,
        record: RequestRecord | None,
    ) -> None:
        """Count a request that is over."""
        if record is not None:
            self.placements.on_ended(record)
        if isinstance(end, FailRequest):
            is_aborted = end.code is ErrorCode.CANCELLED
            # One that was refused at admission is counted by `baton_admissions`, by its reason.
            if end.code not in _REFUSED or stream.num_sent_tokens:
                reason = FinishReason.ABORT if is_aborted else FinishReason.ERROR
                ends = self._engine(_last_engine(record)).ends
                ends.update(stream.text.finish_reasons)
                ends[reason] += stream.spec.params.n - len(stream.text.finish_reasons)
            if not is_aborted:
                self.num_failed_requests += 1
                self._latencies.on_failed(now)
        else:
            engine = self._engine(end.timings.decode_worker or end.timings.prefill_worker)
            engine.ends.update(stream.text.finish_reasons)
            self.num_finished_requests += 1
            _count_finished(engine, stream, end)
            latencies = _latencies_of(record)
            if latencies:
                engine.add(vllm.TIME_TO_FIRST_TOKEN, latencies[Latency.TTFT])
                engine.add(vllm.E2E_LATENCY, latencies[Latency.E2E])
            self._latencies.on_finished(now, latencies)
        self.num_cut_tokens += stream.text.num_cut_tokens

    def ended(self) -> Ended:
        """Sums over all engines."""
        engines = (*self._engines.values(), self._forgotten)
        ends = sum((engine.ends for engine in engines), Counter[str]())
        return Ended(
            num_finished=ends.total() - ends[FinishReason.ABORT] - ends[FinishReason.ERROR],
            num_failed=self.num_failed_requests,
            num_prompt_tokens=sum(engine.num_prompt_tokens for engine in engines),
            num_cached_tokens=sum(engine.num_cached_tokens for engine in engines),
            num_generated_tokens=sum(engine.num_generated for engine in engines),
        )

    def report(self, page: Exposition, model_name: str, worker_ids: Iterable[str], now: float) -> None:
        """Add all samples to a scrape; those of `worker_ids` begin at 0, before their first request.

        Workers that are none of these, and were none for `KEPT_S`, are in the next scrapes no more.
        """
        self._count_gaps()
        for worker_id in worker_ids:
            self._engine(worker_id).seen_s = now
        for worker_id, engine in self._engines.items():
            labels = (model_name, worker_id)
            page.add(vllm.PROMPT_TOKENS, engine.num_prompt_tokens, *labels)
            page.add(vllm.PROMPT_TOKENS_CACHED, engine.num_cached_tokens, *labels)
            page.add(vllm.GENERATION_TOKENS, engine.num_generated, *labels)
            for reason in FinishReason:
                page.add(vllm.REQUEST_SUCCESS, engine.ends[reason], *labels, reason)
            for family, distribution in engine.distributions.items():
                page.add(family, distribution, *labels)
        self._forget_gone(now)

    def _forget_gone(self, now: float) -> None:
        for worker_id, engine in list(self._engines.items()):
            if engine.seen_s == -math.inf:
                engine.seen_s = now
            if worker_id != NO_ENGINE and now - engine.seen_s > KEPT_S:
                self._forgotten.add_totals(self._engines.pop(worker_id))

    def _engine(self, worker_id: str) -> _Engine:
        if (engine := self._engines.get(worker_id)) is None:
            engine = self._engines[worker_id] = _Engine()
        return engine


def _last_engine(record: RequestRecord | None) -> str:
    """Return the worker that last had to decode a request."""
    chosen = [decision.chosen for decision in record.decisions if decision.chosen] if record else []
    return chosen[-1].decode if chosen else NO_ENGINE


def _latencies_of(record: RequestRecord | None) -> dict[Latency, float]:
    """TTFT, E2E and, after more than one token, TPOT of a request; empty where its times are not known."""
    if record is None or record.first_token_s is None or record.ended_s is None:
        return {}
    return latencies_of(record, record.ended_s)


def _count_finished(engine: _Engine, stream: ClientStream, end: FinishRequest) -> None:
    timings, params = end.timings, stream.spec.params
    engine.num_prompt_tokens += end.num_prompt_tokens
    engine.num_cached_tokens += end.num_cached_tokens
    engine.add(vllm.QUEUE_TIME, timings.queue_s)
    engine.add(vllm.INFERENCE_TIME, timings.total_s - timings.queue_s)
    engine.add(vllm.PREFILL_TIME, timings.prefill_s)
    engine.add(vllm.DECODE_TIME, timings.total_s - timings.first_token_s)
    if timings.per_token_s:
        engine.add(vllm.TIME_PER_OUTPUT_TOKEN, timings.per_token_s)
    engine.add(vllm.REQUEST_PROMPT_TOKENS, end.num_prompt_tokens)
    engine.add(vllm.PREFILL_COMPUTED, end.num_prompt_tokens - end.num_cached_tokens)
    engine.add(vllm.REQUEST_GENERATION_TOKENS, stream.num_sent_tokens)
    engine.add(vllm.MAX_GENERATION_TOKENS, max(stream.text.sequence_tokens))
    engine.add(vllm.PARAMS_N, params.n)
    if params.max_tokens is not None:
        engine.add(vllm.PARAMS_MAX_TOKENS, params.max_tokens)
