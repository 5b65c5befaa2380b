"""Check a simulated router's record of every request that is over."""

from __future__ import annotations

from baton_core.requests.phases import PhaseName
from baton_router.core.flow.request_record import RequestRecord, WorkerPart
from baton_router.core.router_events import FailRequest, FinishRequest
from baton_simulator.cluster import Cluster
from baton_simulator.outcome import Outcome


def check_records(cluster: Cluster) -> None:
    """Each request has a record of its end, and whoever finished its prompt counts each token once."""
    has_all_parts = all(worker.is_alive and worker.info.epoch == 1 for worker in cluster.workers.values())
    for request_id, outcome in cluster.router.outcomes.items():
        record = cluster.router.core.log.get(request_id)
        assert record is not None, f"{request_id} has no record"
        _check_end(record, outcome)
        for part in record.parts:
            _check_part(record, part)
        halves = [(part.worker_id, part.attempt_id, _is_prefill(part)) for part in record.parts]
        assert len(halves) == len(set(halves)), f"{request_id} was told twice of one half of an attempt"
        (end,) = outcome.ends
        if has_all_parts and isinstance(end, FinishRequest):
            _check_finished(record, end)


def _check_end(record: RequestRecord, outcome: Outcome) -> None:
    (end,) = outcome.ends
    assert record.ended_s is not None
    assert record.num_output_tokens == sum(map(len, outcome.tokens.values()))
    assert record.first_token_s == outcome.first_token_s
    assert record.code == (end.code if isinstance(end, FailRequest) else None)
    assert record.phases[-1].name is PhaseName.FINISH


def _check_part(record: RequestRecord, part: WorkerPart) -> None:
    names = [phase.name for phase in part.phases]
    num_counted = _num_counted(part)
    assert num_counted <= record.num_prompt_tokens
    if PhaseName.DECODE in names:
        assert num_counted == record.num_prompt_tokens, (record.request_id, part)
    num_chunked = sum(phase.num_tokens for phase in part.phases if phase.name is PhaseName.PREFILL_CHUNK)
    assert num_chunked >= part.sources.num_computed
    assert all(phase.start_s <= phase.end_s for phase in part.phases)


def _check_finished(record: RequestRecord, end: FinishRequest) -> None:
    """Its last attempt is told by every worker that finished the prompt."""
    timings = end.timings
    for worker_id in {timings.prefill_worker, timings.decode_worker} - {""}:
        parts = [part for part in record.parts if part.worker_id == worker_id]
        assert any(_num_counted(part) == record.num_prompt_tokens for part in parts), (worker_id, record)


def _is_prefill(part: WorkerPart) -> bool:
    """Only who computes a prompt has it in its queue; the same worker may decode it later, as a new part."""
    return any(phase.name is PhaseName.QUEUE for phase in part.phases)


def _num_counted(part: WorkerPart) -> int:
    sources = part.sources
    return sources.num_computed + sources.num_local_cache + sources.num_remote + sources.num_recomputed
