"""Outliers are requests that took too long, each with the limit that it is beyond."""

from __future__ import annotations

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.request_context import RequestContext, Slo
from baton_router.core.flow.request_record import RequestRecord
from baton_router.metrics.latency_window import Latency, LatencySummary, LatencyWindow
from baton_router.metrics.outliers import MIN_COUNT, Limit, outliers_of

NOW = 100.0
NO_SLO = Slo()
NO_REQUESTS = LatencySummary()


def make_record(ttft_s: float | None = 0.1, e2e_s: float = 1.0, own: Slo = NO_SLO) -> RequestRecord:
    record = RequestRecord(
        request_id="r",
        context=RequestContext(slo=own),
        num_prompt_tokens=1,
        started_s=NOW - e2e_s,
        waiting_s=None,
    )
    record.finish(NOW, 2, per_token_s=0.02)
    record.first_token_s = None if ttft_s is None else record.started_s + ttft_s
    return record


def make_summary(num_requests: int) -> LatencySummary:
    window = LatencyWindow(NO_SLO)
    for _ in range(num_requests):
        window.on_finished(NOW, {Latency.TTFT: 0.1, Latency.TPOT: 0.02, Latency.E2E: 1.0})
    return window.summary(NOW)


def test_a_latency_beyond_the_slo_is_an_outlier() -> None:
    (outlier,) = outliers_of(make_record(0.6), NOW, Slo(ttft_s=0.5, tpot_s=0.1), NO_REQUESTS)
    assert (outlier.metric, outlier.limit, outlier.limit_s) == (Latency.TTFT, Limit.SLO, 0.5)
    assert outlier.value_s == pytest.approx(0.6)
    assert outliers_of(make_record(0.4), NOW, Slo(ttft_s=0.5, tpot_s=0.1), NO_REQUESTS) == []
    (slow,) = outliers_of(make_record(), NOW, Slo(tpot_s=0.01), NO_REQUESTS)
    assert (slow.metric, slow.value_s) == (Latency.TPOT, 0.02)


def test_a_request_that_has_an_slo_of_its_own_is_held_to_it() -> None:
    assert outliers_of(make_record(0.6, own=Slo(ttft_s=1.0)), NOW, Slo(ttft_s=0.5), NO_REQUESTS) == []
    (outlier,) = outliers_of(make_record(0.3, own=Slo(ttft_s=0.2)), NOW, Slo(ttft_s=0.5), NO_REQUESTS)
    assert outlier.limit_s == 0.2


def test_without_an_slo_the_99th_percentile_of_enough_requests_is_the_limit() -> None:
    record = make_record(0.5, e2e_s=3.0)
    assert outliers_of(record, NOW, NO_SLO, make_summary(MIN_COUNT - 1)) == []
    found = outliers_of(record, NOW, NO_SLO, make_summary(MIN_COUNT))
    assert [(one.metric, one.limit) for one in found] == [(Latency.TTFT, Limit.P99), (Latency.E2E, Limit.P99)]
    assert found[1].limit_s == pytest.approx(1.0, rel=0.01)


def test_a_request_that_waits_for_its_first_token_is_timed_until_now() -> None:
    record = make_record(None, e2e_s=2.0)
    record.ended_s = None
    (outlier,) = outliers_of(record, NOW, Slo(ttft_s=1.5), NO_REQUESTS)
    assert outlier.value_s == pytest.approx(2.0)


def test_a_request_that_failed_has_none() -> None:
    record = make_record(0.6)
    record.code = ErrorCode.CANCELLED
    assert outliers_of(record, NOW, Slo(ttft_s=0.5), NO_REQUESTS) == []
