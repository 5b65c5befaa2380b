"""Latency percentiles of the last minutes, against an SLO."""

from __future__ import annotations

import pytest

from baton_core.requests.request_context import Slo
from baton_router.metrics.latency_window import NUM_SLICES, SLICE_S, WINDOW_S, Latency, LatencyWindow

NOW = 1000.0


def make_window(*ttfts: float, slo: Slo | None = None) -> LatencyWindow:
    window = LatencyWindow(slo or Slo())
    for ttft_s in ttfts:
        window.on_finished(NOW, {Latency.TTFT: ttft_s, Latency.E2E: ttft_s + 1})
    return window


def test_an_empty_window_has_no_percentiles_and_no_verdict() -> None:
    summary = make_window(slo=Slo(ttft_s=1.0)).summary(NOW)
    assert [one.metric for one in summary.percentiles] == list(Latency)
    for one in summary.percentiles:
        assert (one.count, one.p50_s, one.p90_s, one.p99_s) == (0, None, None, None)
        assert one.share_within_slo is one.is_slo_attained is None
    assert summary.percentiles[0].slo_s == 1.0


def test_percentiles_are_of_all_requests_in_the_window() -> None:
    ttft, tpot, _, e2e = make_window(*(number / 100 for number in range(1, 101))).summary(NOW).percentiles
    assert (ttft.count, tpot.count, e2e.count) == (100, 0, 100)
    assert (ttft.p50_s, ttft.p90_s, ttft.p99_s) == pytest.approx((0.5, 0.9, 0.99), rel=0.01)
    assert e2e.p50_s == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize(("num_late", "is_attained"), [(0, True), (1, True), (2, False)])
def test_the_slo_is_attained_while_99_in_100_are_within_it(num_late: int, *, is_attained: bool) -> None:
    window = make_window(*[0.5] * (100 - num_late), *[0.51] * num_late, slo=Slo(ttft_s=0.5))
    ttft, _, _, e2e = window.summary(NOW).percentiles
    assert ttft.share_within_slo == pytest.approx(1 - num_late / 100)
    assert ttft.is_slo_attained is is_attained
    assert e2e.slo_s is e2e.is_slo_attained is None


def test_what_is_older_than_the_window_is_forgotten() -> None:
    window = make_window(1.0)
    window.on_failed(NOW)
    window.on_tokens(NOW, 0.02, 3)
    later = NOW + WINDOW_S - SLICE_S
    window.on_finished(later, {Latency.TTFT: 2.0})
    before = window.summary(later)
    assert (before.num_finished, before.num_failed, before.percentiles[2].count) == (2, 1, 3)
    after = window.summary(NOW + WINDOW_S)
    assert (after.num_finished, after.num_failed, after.percentiles[2].count) == (1, 0, 0)
    assert window.summary(NOW + 3 * WINDOW_S).num_finished == 0


def test_a_percentile_can_be_of_the_last_seconds_only() -> None:
    window = make_window(9.0)
    window.on_finished(NOW + 60, {Latency.TTFT: 0.1})
    assert window.quantile(NOW + 60, Latency.TTFT, 0.9, 30.0) == pytest.approx(0.1, rel=0.01)
    assert window.quantile(NOW + 60, Latency.TTFT, 0.9, WINDOW_S) == pytest.approx(9.0, rel=0.01)
    assert window.quantile(NOW + 120, Latency.TTFT, 0.9, 30.0) is None


def test_memory_does_not_grow_with_requests_or_time() -> None:
    window = LatencyWindow(Slo())
    for number in range(20_000):
        window.on_finished(NOW + number, {Latency.TTFT: 0.001 * (1 + number % 1000)})
    assert len(window._past) + 1 == NUM_SLICES
    assert window.summary(NOW + 19_999).num_finished <= WINDOW_S
    assert window._sum.sketches[Latency.TTFT].num_buckets <= WINDOW_S
