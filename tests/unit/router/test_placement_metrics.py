"""A router counts its decisions."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton_core.errors import ErrorCode
from baton_core.requests.request_context import RequestContext
from baton_router.core.flow.request_record import RequestRecord, open_record
from baton_router.core.placement.placement_record import Candidate, Cost, Decision
from baton_router.metrics.placement_metrics import FAMILIES, PlacementMetrics
from baton_service.exposition import Exposition
from tests.builders import make_request


def decision(prefill: str = "", decode: str = "", *, at_s: float = 1.0, ttft_s: float = 0.5) -> Decision:
    cost = Cost(queue_s=0.1, prefill_s=ttft_s - 0.1)
    chosen = Candidate(prefill=prefill, decode=decode, cost=cost) if decode else None
    return Decision(policy="cost", at_s=at_s, chosen=chosen, reason="because")


def record(*decisions: Decision, first_token_s: float | None = None, wait_s: float = 0.0) -> RequestRecord:
    made = open_record(1.0 - wait_s, make_request(), RequestContext())
    made.decisions.extend(decisions)
    made.place(1.0)
    if first_token_s is not None:
        made.take_first_token(first_token_s, 0)
    return made


def samples(metrics: PlacementMetrics) -> dict[tuple[str, str], float]:
    page = Exposition(FAMILIES)
    metrics.report(page)
    return {
        (sample.name, sample.labels.get("kind") or sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(page.text().decode())
        for sample in family.samples
    }


def test_decisions_count_by_what_came_of_them() -> None:
    metrics = PlacementMetrics()
    metrics.on_ended(record(decision(), decision("p", "d"), decision("d", "d")))
    metrics.on_ended(record(decision("p", "d")))
    told = samples(metrics)
    kinds = ("split", "local", "refused")
    assert [told["baton_placements_total", kind] for kind in kinds] == [2, 1, 1]


def test_the_last_prediction_is_held_against_the_first_token() -> None:
    metrics = PlacementMetrics()
    metrics.on_ended(record(decision("p", "d", ttft_s=9.0), decision("p", "d"), first_token_s=1.7))
    metrics.on_ended(record(decision("p", "d"), first_token_s=1.2))
    metrics.on_ended(record(decision("p", "d")))
    told = samples(metrics)
    name = "baton_ttft_prediction_error_seconds_bucket"
    assert [told[name, bound] for bound in ("-0.5", "-0.25", "0.0", "0.1", "0.25", "+Inf")] == [
        0,
        1,
        1,
        1,
        2,
        2,
    ]


def test_waits_at_the_router_are_summed_for_each_request() -> None:
    metrics = PlacementMetrics()
    waiting_twice = record(wait_s=0.25)
    waiting_twice.wait(2.0)
    waiting_twice.place(2.5)
    metrics.on_ended(waiting_twice)
    refused = open_record(1.0, make_request(), RequestContext())
    refused.fail(1.0, 0, ErrorCode.OVERLOADED, "the queue is full")
    metrics.on_ended(refused)
    told = samples(metrics)
    assert told["baton_queue_wait_seconds_count", ""] == 1
    assert told["baton_queue_wait_seconds_sum", ""] == pytest.approx(0.75)
