"""The dashboard shows the counts of all processes of a router together."""

from __future__ import annotations

import msgspec
import pytest

from baton_core.requests.request_context import Slo
from baton_core.sessions.worker_info import Role
from baton_router.http.debug.counted import Admissions, Counted, Placements, Shift, Totals, add_counts
from baton_router.http.debug.recent import RecentPart, add_samples
from baton_router.metrics.history import Loads, Sample
from baton_router.metrics.latency_window import Latency, LatencyWindow


def counted(number: int, *kinds: str, age_s: float) -> Counted:
    shift = Shift(worker_id="w", before=Role.MIXED, after=Role.DECODE, reason="", age_s=age_s)
    return Counted(
        num_open_calls=number,
        num_open_requests=number,
        num_waiting=number,
        totals=Totals(**dict.fromkeys(Totals.__struct_fields__, number)),
        placements=[Placements(policy="cost", kind=kind, count=number) for kind in kinds],
        admissions=[Admissions(outcome="admitted", count=number)],
        shifts=[shift],
    )


def test_counts_are_added() -> None:
    both = add_counts([counted(2, "local", age_s=9.0), counted(3, "local", "split", age_s=1.0)])
    assert (both.num_open_calls, both.num_open_requests, both.num_waiting) == (5, 5, 5)
    assert set(msgspec.structs.asdict(both.totals).values()) == {5}
    assert [(one.kind, one.count) for one in both.placements] == [("local", 5), ("split", 3)]
    assert [(one.outcome, one.count) for one in both.admissions] == [("admitted", 5)]
    assert [shift.age_s for shift in both.shifts] == [1.0, 9.0]


def sample(at_s: float, rate: float, num_queued: int, ttft_p90_s: float | None) -> Sample:
    loads = Loads(
        num_queued=num_queued, num_running=7, num_waiting=0, kv_usage={Role.MIXED: 0.5}, ttft_p90_s=ttft_p90_s
    )
    return Sample(
        at_s=at_s,
        finished_per_s=rate,
        failed_per_s=rate,
        prompt_tokens_per_s=rate,
        generated_tokens_per_s=rate,
        transfer_bytes_per_s=rate,
        loads=loads,
    )


def test_samples_are_added_to_those_of_the_same_time() -> None:
    own = [sample(10.0, 1.0, 1, None), sample(12.0, 1.0, 1, 0.5), sample(20.0, 1.0, 1, None)]
    other = [sample(10.9, 2.0, 2, 0.25), sample(12.9, 3.0, 3, 0.25)]
    added = add_samples(own, [other, []])
    assert [one.at_s for one in added] == [10.0, 12.0, 20.0]
    assert [one.finished_per_s for one in added] == [3.0, 4.0, 1.0]
    assert [one.loads.num_queued for one in added] == [3, 4, 1]
    assert [one.loads.ttft_p90_s for one in added] == [0.25, 0.5, None]
    assert {one.loads.num_running for one in added} == {7}


def test_percentiles_are_of_all_latencies() -> None:
    windows = [LatencyWindow(Slo(ttft_s=1.0)) for _ in range(3)]
    for number in range(100):
        value = 0.1 if number < 90 else 9.0
        for window in (windows[number % 2], windows[2]):
            window.on_finished(1.0, {Latency.TTFT: value})
    windows[1].on_failed(1.0)
    windows[2].on_failed(1.0)
    part = RecentPart(pid=1, latencies=windows[1].counts(2.0), samples=[sample(1.0, 1.0, 1, None)])
    heard = msgspec.json.decode(msgspec.json.encode(part), type=RecentPart)
    assert heard == part
    both = windows[0].summary(2.0, [heard.latencies])
    assert both == windows[2].summary(2.0)
    assert (both.num_finished, both.num_failed) == (100, 1)
    assert both.percentiles[0].share_within_slo == pytest.approx(0.9)
