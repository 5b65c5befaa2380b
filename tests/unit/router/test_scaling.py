"""How many workers each role should have: at once more, later fewer, and each time with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_core.requests.request_context import Slo
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad, WorkerRates
from baton_router.core.fleet.role_pressure import Waiting, Worker
from baton_router.core.fleet.scaling import Scaling, ScalingConfig
from tests.builders import make_identity

RATES = WorkerRates(prefill_tokens_per_s=1000.0, decode_step_s=0.05)
NOBODY = Waiting()


def worker(name: str, role: Role, **load: object) -> Worker:
    info = WorkerInfo(
        worker_id=name,
        epoch=1,
        role=role,
        identity=make_identity(),
        max_model_len=1000,
        vocab_size=1000,
        num_blocks=100,
        max_num_seqs=10,
        peer_address="",
        kv_description=b"",
    )
    fields = {"num_available_blocks": 100, "rates": RATES, **load}
    return info, WorkerLoad(**fields)  # type: ignore[arg-type]


def sampled(
    scaling: Scaling, *workers: Worker, until_s: float, since_s: float = 0.0, waiting: Waiting = NOBODY
) -> dict[Role, int]:
    """Sample every two seconds; returns what is recommended in the end."""
    now = since_s
    while now <= until_s:
        roles = scaling.sample(now, workers, waiting)
        now += 2.0
    return {one.role: one.num_desired for one in roles if one.role is not Role.MIXED}


def test_an_idle_fleet_is_told_to_keep_one_worker_of_each_role() -> None:
    idle = [worker(f"p{n}", Role.PREFILL) for n in range(3)] + [worker("d", Role.DECODE)]
    assert sampled(Scaling(), *idle, until_s=300.0) == {Role.PREFILL: 1, Role.DECODE: 1}


def test_a_new_router_recommends_no_fewer_workers_than_there_are() -> None:
    scaling, d = Scaling(), worker("d", Role.DECODE)
    busy = [worker(f"p{n}", Role.PREFILL, num_queued_tokens=100 * (n < 3)) for n in range(10)]
    assert sampled(scaling, *busy, d, until_s=28.0)[Role.PREFILL] == 10
    assert not scaling.is_settled
    assert scaling.roles[0].reason.endswith("; 5 would do, but the workers were watched for 28 s only")
    assert sampled(scaling, *busy, d, since_s=30.0, until_s=298.0)[Role.PREFILL] == 10
    assert scaling.is_settled
    assert sampled(scaling, *busy, d, since_s=300.0, until_s=300.0)[Role.PREFILL] == 5


def test_prompts_that_wait_longer_than_the_slo_allows_ask_for_prefill_workers_at_once() -> None:
    scaling = Scaling(ScalingConfig(slo=Slo(ttft_s=2.0)))
    p, d = worker("p", Role.PREFILL, num_queued_tokens=3500), worker("d", Role.DECODE)
    assert sampled(scaling, p, d, until_s=0.0) == {Role.PREFILL: 4, Role.DECODE: 1}
    assert scaling.predicted_ttft_s == pytest.approx(3.5)
    assert scaling.roles[0].reason == "prompts wait 3.50 s (TTFT SLO 2 s); 3.5 workers over 0 s"
    assert scaling.roles[0].need == pytest.approx(3.5)


def test_prompts_at_the_router_count_as_those_at_workers() -> None:
    waiting = Waiting(num_requests=5, num_tokens=3500)
    p, d = worker("p", Role.PREFILL), worker("d", Role.DECODE)
    assert sampled(Scaling(), p, d, until_s=0.0, waiting=waiting) == {Role.PREFILL: 4, Role.DECODE: 1}


@pytest.mark.parametrize(
    ("load", "desired"),
    [
        ({"num_running": 8, "num_waiting": 4}, 2),
        ({"num_running": 1, "num_available_blocks": 10}, 2),
        ({"num_running": 1, "num_available_blocks": 30}, 1),
    ],
)
def test_decode_workers_are_counted_by_their_fullest_part(load: dict[str, object], desired: int) -> None:
    p, d = worker("p", Role.PREFILL), worker("d", Role.DECODE, **load)
    assert sampled(Scaling(), p, d, until_s=0.0)[Role.DECODE] == desired


def test_steps_slower_than_the_slo_ask_for_decode_workers() -> None:
    scaling = Scaling(ScalingConfig(slo=Slo(tpot_s=0.03)))
    p, d = worker("p", Role.PREFILL), worker("d", Role.DECODE, num_running=1)
    assert sampled(scaling, p, d, until_s=0.0)[Role.DECODE] == 3
    assert scaling.roles[1].reason.endswith("a step takes 50 ms (TPOT SLO 0.03 s)")


def test_the_step_of_an_idle_fleet_is_the_one_that_its_workers_have_learned() -> None:
    idle, running = worker("d", Role.DECODE), worker("d2", Role.DECODE, num_running=1)
    new = worker("d3", Role.DECODE, num_running=1, rates=WorkerRates())
    for workers, step_s in (((idle,), 0.05), ((idle, new), 0.05), ((running, new), 0.05), ((new,), 0.0)):
        scaling = Scaling()
        sampled(scaling, *workers, until_s=0.0)
        assert scaling.predicted_tpot_s == step_s
        assert ("a step takes 50 ms" in scaling.roles[1].reason) == bool(step_s)


def test_fewer_are_recommended_only_after_five_minutes_that_needed_no_more() -> None:
    scaling, d = Scaling(), worker("d", Role.DECODE)
    busy = [worker(f"p{n}", Role.PREFILL, num_queued_tokens=900) for n in range(2)]
    idle = [worker(f"p{n}", Role.PREFILL) for n in range(3)]
    assert sampled(scaling, *busy, d, until_s=60.0)[Role.PREFILL] == 3
    assert sampled(scaling, *idle, d, since_s=62.0, until_s=300.0)[Role.PREFILL] == 3
    assert "s ago 3 were needed" in scaling.roles[0].reason
    assert sampled(scaling, *idle, d, since_s=302.0, until_s=420.0)[Role.PREFILL] == 1


def test_a_need_close_to_what_there_is_changes_nothing() -> None:
    busy = [worker(f"p{n}", Role.PREFILL, num_queued_tokens=100 * (n < 7)) for n in range(10)]
    scaling = Scaling(ScalingConfig(prefill_use=0.65))
    assert sampled(scaling, *busy, worker("d", Role.DECODE), until_s=30.0)[Role.PREFILL] == 10


def test_mixed_workers_count_in_both_roles_and_those_that_drain_in_none() -> None:
    info, load = worker("m0", Role.MIXED)
    draining = (replace(info, worker_id="m1"), replace(load, is_draining=True))
    scaling = Scaling()
    scaling.sample(0.0, [(info, load), draining], NOBODY)
    assert [one.num_workers for one in scaling.roles] == [1, 1, 1]


def test_workers_whose_roles_may_change_are_needed_for_the_sum_of_both() -> None:
    def all_workers(scaling: Scaling, *workers: Worker) -> tuple[int, int, str]:
        for second in range(0, 302, 2):
            *_, one = scaling.sample(second, workers, NOBODY)
        assert one.role is Role.MIXED
        return one.num_workers, one.num_desired, one.reason

    busy = worker("p", Role.PREFILL, num_queued_tokens=300), worker("d", Role.DECODE, num_running=9)
    assert all_workers(Scaling(), *busy) == (2, 3, "prefill needs 1.4 and decode needs 1.2")
    idle = [worker(name, Role.PREFILL if name == "p" else Role.DECODE) for name in "pde"]
    assert all_workers(Scaling(), *idle)[:2] == (3, 2), "one of each role"
    assert all_workers(Scaling(), worker("m", Role.MIXED), worker("n", Role.MIXED))[:2] == (2, 1)


def test_a_start_without_workers_asks_for_no_second_mixed_worker() -> None:
    scaling = Scaling()
    sampled(scaling, until_s=20.0)
    sampled(scaling, worker("m", Role.MIXED), since_s=22.0, until_s=60.0)
    assert [one.num_desired for one in scaling.roles] == [1, 1, 1]
    sampled(scaling, worker("p", Role.PREFILL), since_s=62.0, until_s=70.0)
    assert scaling.roles[2].num_desired == 2
