"""Runs of small fleets: answers that can be computed by hand, and what holds in every run."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from baton_core.requests.request_context import Slo
from baton_router.core.placement.placement_config import SplitMode
from baton_simulator.capacity.fleet_run import FleetPlan, FleetRun, Loss
from baton_simulator.capacity.request_result import RequestResult
from baton_simulator.capacity.trace import Scale
from baton_simulator.capacity.trace_formats import TraceRequest
from baton_simulator.capacity.workload import Ask, make_workload
from tests.unit.simulator.capacity_fleets import KV_BYTES, make_plan, make_requests

pytestmark = pytest.mark.slow


def run(plan: FleetPlan, requests: list[TraceRequest]) -> list[RequestResult]:
    """Run to the end and a while longer, and see that nothing is left anywhere."""
    fleet = FleetRun(plan, make_workload(requests, Scale()))
    results = fleet.run()
    fleet.clock.run(fleet.clock.now + 30.0)
    fleet.router.core.check_invariants()
    assert fleet.router.core.num_requests == 0
    for worker in fleet.workers.values():
        worker.core.check_invariants()
        assert not worker.is_alive or worker.core.num_requests == 0
    return results


def make_mixture(seed: int, count: int) -> list[TraceRequest]:
    """Prompts of up to three ids, many of them shared, in bursts."""
    rng, requests, at_ms = Random(seed), [], 0
    for _ in range(count):
        ids = [0, rng.randrange(1, 6), rng.randrange(6, 20)][: rng.randint(1, 3)]
        requests.append(
            TraceRequest(
                timestamp=at_ms,
                input_length=512 * len(ids) - rng.randrange(512),
                output_length=rng.randint(0, 12),
                hash_ids=ids,
            )
        )
        at_ms += rng.choice([0, 0, 400])
    return requests


def test_a_request_alone_takes_its_steps() -> None:
    (result,) = run(make_plan("1M", split=SplitMode.NEVER), make_requests(1, prompt=100, output=5))
    assert result.ttft_s == pytest.approx(0.01 + 100 * 0.001)
    assert result.e2e_s == pytest.approx(0.11 + 4 * 0.012)
    assert result.tpot_s == pytest.approx(0.012)
    assert (result.is_split, result.num_cached_tokens, result.error) == (False, 0, "")


def test_a_message_takes_its_time_on_each_of_its_four_ways() -> None:
    plan = make_plan("1M", split=SplitMode.NEVER, message_s=0.1)
    (result,) = run(plan, make_requests(1, prompt=100, output=5))
    assert result.ttft_s == pytest.approx(0.11 + 4 * 0.1)
    assert result.e2e_s == pytest.approx(0.11 + 4 * 0.1 + 4 * 0.012)


def test_a_split_request_waits_for_its_blocks_to_cross_the_link() -> None:
    (result,) = run(make_plan("1P:1D"), make_requests(1, prompt=100, output=5))
    copy_s = 4 * 32 * KV_BYTES / 1e6
    assert result.is_split
    assert result.ttft_s == pytest.approx(0.11)
    assert result.e2e_s == pytest.approx(0.11 + copy_s + 4 * 0.012)


def test_two_prompts_at_once_follow_one_another_on_a_worker_and_on_a_link() -> None:
    requests = [
        TraceRequest(timestamp=0, input_length=1500, output_length=2, hash_ids=[3 * n, 3 * n + 1, 3 * n + 2])
        for n in range(2)
    ]
    first, second = run(make_plan("1P:1D", link_bytes_per_s=1e9), requests)
    assert first.ttft_s == pytest.approx(0.01 + 1.5)
    assert second.ttft_s == pytest.approx(2 * (0.01 + 1.5))


def test_the_second_prompt_of_a_conversation_finds_the_blocks_of_the_first() -> None:
    requests = make_requests(2, prompt=1024, output=1, every_ms=5000)
    again = [requests[0], TraceRequest(5000, 1200, 1, [*requests[0].hash_ids, 99])]
    _, second = run(make_plan("1M", split=SplitMode.NEVER), again)
    assert second.num_cached_tokens == 1024
    assert second.ttft_s == pytest.approx(0.01 + (1200 - 1024) * 0.001)


@pytest.mark.parametrize("tokens_per_step", [4, 64])
@pytest.mark.parametrize("output", [2, 6, 65, 100])
def test_steps_that_stand_for_several_take_as_long_in_all(tokens_per_step: int, output: int) -> None:
    plan = make_plan("1M", split=SplitMode.NEVER, tokens_per_step=tokens_per_step)
    (result,) = run(plan, make_requests(1, prompt=100, output=output))
    assert result.e2e_s == pytest.approx(0.11 + (output - 1) * 0.012)
    assert result.tpot_s == pytest.approx(0.012)


def test_an_answer_does_not_wait_for_the_longer_ones_of_its_last_step() -> None:
    requests = [TraceRequest(0, 100, 11, [0]), TraceRequest(50, 100, 9, [1])]
    plan = make_plan("1M", split=SplitMode.NEVER, tokens_per_step=8)
    first, second = run(plan, requests)
    both_s = 0.11 + 0.112 + 7 * 0.012
    assert first.e2e_s == pytest.approx(both_s + 2 * 0.014)
    assert 0.05 + second.e2e_s == pytest.approx(both_s + 2 * 0.014 + 6 * 0.012)


@pytest.mark.parametrize("mix", ["1M", "2P:2D", "1P:1D:1M"])
def test_every_request_ends_once_and_nothing_is_left(mix: str) -> None:
    requests = make_mixture(1, 40)
    results = run(make_plan(mix, split=SplitMode.AUTO, max_num_seqs=8), requests)
    assert [result.ask.name for result in results] == [f"request-{number}" for number in range(40)]
    assert all(result.is_whole for result in results)
    assert any(result.num_cached_tokens for result in results)


def test_equal_plans_give_equal_fates() -> None:
    one, other = (run(make_plan("2P:2D", split=SplitMode.AUTO), make_mixture(2, 30)) for _ in range(2))
    assert one == other


def test_every_request_ends_though_workers_are_lost() -> None:
    plan = make_plan("2P:2D", split=SplitMode.AUTO)
    losing = FleetPlan(
        mix=plan.mix, hardware=plan.hardware, router=plan.router, loss=Loss(workers=("P0", "D0"), at_s=2.0)
    )
    results = run(losing, make_mixture(3, 40))
    assert len(results) == 40
    assert all(result.ended_s is not None for result in results)
    late = [result for result in results if result.ask.at_s > 2.0 + 1.5]
    assert late
    assert all(result.is_whole for result in late), (
        "whoever comes once the loss is known is served by the others"
    )


def test_a_prompt_that_no_cache_holds_is_refused() -> None:
    plan = make_plan("1M", split=SplitMode.NEVER)
    (result,) = run(plan, make_requests(1, prompt=199_999))
    assert "needs 200004 tokens; the largest max_model_len of a decode worker is 200000" in result.error


def test_a_prompt_that_no_cache_holds_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Ask, "prompt_token_ids")
    (result,) = run(make_plan("1M", split=SplitMode.NEVER), make_requests(1, prompt=300_000))
    assert result.error == "the request needs 300005 tokens; the largest max_model_len is 200000"


def test_what_cannot_be_in_time_is_refused_where_the_router_enforces_it() -> None:
    plan = make_plan("1M", split=SplitMode.NEVER)
    strict = FleetPlan(mix=plan.mix, hardware=plan.hardware, router=plan.router, slo=Slo(ttft_s=3.0))
    requests = make_requests(24, prompt=2000, output=1, every_ms=500)
    assert all(result.is_whole for result in run(plan, requests))
    results = run(strict, requests)
    assert any("slo_ttft_s is 3" in result.error for result in results)


def test_a_tpot_is_enforced_by_the_token_where_a_step_stands_for_several() -> None:
    plan = make_plan("1M", split=SplitMode.NEVER, tokens_per_step=8)
    requests = make_requests(12, prompt=200, output=40, every_ms=1000)
    assert all(result.is_whole for result in run(replace(plan, slo=Slo(tpot_s=0.03)), requests))
    refused = run(replace(plan, slo=Slo(tpot_s=0.01)), requests)
    told = [result.error for result in refused if result.error]
    assert told
    assert all(error.startswith("slo_tpot_s is 0.08; the fastest worker needs 0.") for error in told)
    assert all("(here 8 tokens, which a step makes, count as one)" in error for error in told)
