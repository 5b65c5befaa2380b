"""Requests are taken, wait, or are refused with a reason and a delay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.adapter import Adapter
from baton_core.requests.finish import FinishReason
from baton_core.requests.request_context import RequestContext, Slo
from baton_core.sessions.worker_info import WorkerRates
from baton_router.core.admission.admission import AdmissionConfig
from baton_router.core.admission.admission_gate import DispatchLimit
from baton_router.core.admission.admission_outcome import AdmissionOutcome
from baton_router.core.admission.rate_limits import RateLimit
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import ClientGone, FailRequest, Submit, WorkerJoined, WorkerLeft
from tests.builders import make_request, make_worker_info
from tests.unit.core.routers import Client, first_token, refused, tokens

ONE_SEAT = DispatchLimit(sequences_per_seat=1.0)
RATES = WorkerRates(prefill_tokens_per_s=10.0, decode_step_s=0.05)


def make_client(*worker_ids: str, max_num_seqs: int = 1, **config: Any) -> Client:
    """Mixed workers that run so many sequences at a time, and are given no more."""
    client = Client(
        split=SplitMode.NEVER, admission=AdmissionConfig(**{"dispatch_limit": ONE_SEAT, **config})
    )
    for worker_id in worker_ids:
        client.feed(WorkerJoined(info=make_worker_info(worker_id, max_num_seqs=max_num_seqs)))
    return client


def of(tenant: str = "", **slo: float) -> RequestContext:
    return RequestContext(tenant=tenant, slo=Slo(**slo))


def names(sent: list[tuple[str, Any]]) -> list[str]:
    return [message.spec.request_id for _, message in sent if hasattr(message, "spec")]


def finish(client: Client, request_id: str, *, now: float, worker_id: str = "m") -> list[str]:
    """End a request with its first token; returns whom that made room for."""
    said = first_token(request_id, tokens(request_id, 0, 5, reason=FinishReason.STOP))
    return names(client.says(worker_id, said, now=now))


def refusal(client: Client, code: ErrorCode = ErrorCode.OVERLOADED) -> FailRequest:
    end = client.ends[-1]
    assert isinstance(end, FailRequest)
    assert end.code is code
    return end


def rate_refusal(client: Client) -> FailRequest:
    return refusal(client, ErrorCode.RATE_LIMIT_EXCEEDED)


# --- the line ---


def test_what_a_worker_has_no_seat_for_waits_and_follows_when_one_is_free() -> None:
    client = make_client("m", "n")
    assert [names(client.submit(name)) for name in "abcd"] == [["a"], ["b"], [], []]
    assert client.core.admission.num_waiting == 2
    assert finish(client, "a", now=1.0, worker_id="n") == ["c"]
    assert finish(client, "b", now=2.0) == ["d"]
    assert client.core.admission.num_by_outcome == {AdmissionOutcome.ADMITTED: 4}


def test_tenants_take_turns_and_one_that_leaves_the_line_is_forgotten() -> None:
    client = make_client("m")
    for name in ("a1", "a2", "a3", "a4", "b1", "b2"):
        client.submit(name, context=of(name[0]))
    client.feed(ClientGone(request_id="a3"))
    order, last = [], "a1"
    for now in range(1, 5):
        (last,) = finish(client, last, now=float(now))
        order.append(last)
    assert order == ["a2", "b1", "a4", "b2"]


def test_a_newcomer_does_not_pass_those_that_wait() -> None:
    client = make_client("m")
    client.submit("a")
    client.submit("b", now=0.5)
    client.says("m", refused("a"), now=1.0)
    assert names(client.submit("c", now=1.0)) == ["a\t1"]


def test_a_newcomer_begins_at_once_where_those_before_it_wait_for_other_workers() -> None:
    client = make_client("m")
    client.feed(WorkerJoined(info=make_worker_info("long", max_model_len=8192, num_blocks=4096)))
    client.heartbeat("long", is_paused=True)
    assert client.submit("a", prompt=5000) == []
    assert names(client.submit("b", now=1.0)) == ["b"]


def test_one_that_was_refused_by_a_worker_goes_on_waiting_where_it_was() -> None:
    client = make_client("m")
    for now, name in enumerate("abc"):
        client.submit(name, now=float(now))
    client.says("m", refused("a"), now=3.0)
    assert names(client.heartbeat("m", now=4.0)) == ["a\t1"]


def test_small_news_give_the_line_a_turn_only_now_and_then() -> None:
    client = make_client("m", max_num_seqs=2)
    for name in "abc":
        client.submit(name)
    assert client.heartbeat("m", now=1.0) == []
    assert client.core.next_deadline() == 30.0
    assert finish(client, "a", now=1.001) == []
    assert client.core.next_deadline() == pytest.approx(1.02)
    assert names(client.wait(1.02)) == ["c"]
    assert client.core.next_deadline() == 100.0


def test_what_waits_when_the_last_worker_is_lost_waits_for_another() -> None:
    client = make_client("m")
    for name in "abc":
        client.submit(name)
    client.feed(WorkerLeft(worker_id="m", reason="it is gone"), now=1.0)
    assert not client.ends
    assert client.join("m2")


def test_the_line_is_bounded_and_who_has_most_in_it_gives_way() -> None:
    client = make_client("m", max_queued_requests=3)
    for name in ("x", "a1", "a2", "a3", "a4"):
        client.submit(name, context=of(name[0]))
    assert refusal(client).request_id == "a4"
    assert refusal(client).message == "3 requests wait for a worker, the maximum"
    client.submit("b1", context=of("b"))
    assert refusal(client).request_id == "a3"
    assert finish(client, "x", now=1.0) == ["a1"]
    assert finish(client, "a1", now=2.0) == ["b1"]
    assert client.core.admission.num_by_outcome[AdmissionOutcome.QUEUE_FULL] == 2


def test_without_a_line_what_finds_no_room_is_refused() -> None:
    client = make_client("m", max_queued_requests=0)
    client.submit("a")
    client.submit("b")
    assert refusal(client).request_id == "b"
    assert client.core.admission.num_waiting == 0


def test_waiting_ends_at_the_queues_deadline() -> None:
    client = make_client("m")
    client.submit("a")
    client.submit("b")
    client.wait(30.0)
    assert refusal(client).message.startswith("waited 30.0 s for a worker: ")
    assert client.core.admission.num_by_outcome[AdmissionOutcome.QUEUE_TIMEOUT] == 1


def test_prompts_that_a_worker_could_not_begin_soon_wait_at_the_router() -> None:
    client = make_client("m", max_num_seqs=8, dispatch_limit=DispatchLimit(queue_s=1.0))
    client.heartbeat("m", rates=RATES)
    assert names(client.submit("a", prompt=8)) == ["a"]
    assert names(client.submit("b", prompt=8, first=100)) == ["b"]
    assert client.submit("c", prompt=8, first=200) == []
    assert client.core.fleet.reservations()[0].num_sequences == 2
    assert names(client.says("m", first_token("a"), now=0.8)) == ["c"]


def test_only_prompts_of_others_keep_a_request_from_a_worker() -> None:
    client = make_client("m", max_num_seqs=4, dispatch_limit=DispatchLimit(queue_s=1.0))
    client.heartbeat("m", rates=RATES, adapter_load_s=5.0)
    assert names(client.submit("many", prompt=8, n=16, max_tokens=200)) == ["many"]
    client.feed(ClientGone(request_id="many"))
    adapter = Adapter(name="a", digest="ff" * 32, path="/a")
    assert names(client.submit("adapted", prompt=8, adapter=adapter)) == ["adapted"]


# --- deadlines ---


def test_what_cannot_have_its_first_token_in_time_is_refused_at_once() -> None:
    client = make_client("m", max_num_seqs=8)
    client.heartbeat("m", rates=RATES)
    assert names(client.submit("a", prompt=8, context=of(ttft_s=1.0))) == ["a"]
    assert client.submit("b", prompt=8, first=100, context=of(ttft_s=1.0)) == []
    assert refusal(client).message == "slo_ttft_s is 1; the first token is predicted after 1.65 s"
    assert refusal(client).retry_after_s == pytest.approx(0.65)
    assert names(client.submit("c", prompt=8, first=100, context=of(ttft_s=2.0))) == ["c"]
    assert client.core.admission.num_by_outcome == {
        AdmissionOutcome.ADMITTED: 2,
        AdmissionOutcome.SLO_TTFT: 1,
    }


def test_a_worker_in_time_takes_what_the_best_one_would_begin_too_late() -> None:
    client = make_client("m", "n", max_num_seqs=8)
    client.heartbeat("m", rates=RATES, num_queued_tokens=8)
    client.heartbeat("n", rates=RATES, num_running=6)
    ((worker_id, _),) = client.submit("a", prompt=2, context=of(ttft_s=3.0))
    assert worker_id == "m", "it stalls nobody"
    ((worker_id, _),) = client.submit("b", prompt=2, first=50, context=of(ttft_s=0.9))
    assert worker_id == "n"


def test_the_time_before_the_router_heard_of_it_counts() -> None:
    client = make_client("m", max_num_seqs=8)
    client.heartbeat("m", rates=RATES)
    late = RequestContext(slo=Slo(ttft_s=1.0), arrived_s=4.5)
    client.submit("a", prompt=8, context=late, now=5.0)
    assert refusal(client).message == "slo_ttft_s is 1; the first token is predicted after 1.35 s"


def test_the_routers_deadline_holds_where_a_request_has_none() -> None:
    client = make_client("m", max_num_seqs=8, slo=Slo(ttft_s=0.5))
    client.heartbeat("m", rates=RATES)
    client.submit("a", prompt=8)
    assert refusal(client).message == "slo_ttft_s is 0.5; the first token is predicted after 0.85 s"
    assert names(client.submit("b", prompt=8, context=of(ttft_s=1.0))) == ["b"]


def test_nothing_is_refused_for_rates_that_are_not_known() -> None:
    client = make_client("m", max_num_seqs=8)
    assert names(client.submit("a", context=of(ttft_s=1e-6, tpot_s=1e-6))) == ["a"]


def test_a_deadline_that_passes_in_the_line_ends_the_wait() -> None:
    client = make_client("m")
    client.submit("a")
    client.submit("b", context=of(ttft_s=2.0))
    assert client.core.next_deadline() == 2.0
    client.wait(2.0)
    assert refusal(client).request_id == "b"
    assert refusal(client).message.startswith("slo_ttft_s is 2; after 2 s it waits for a worker: ")
    assert client.core.admission.num_by_outcome[AdmissionOutcome.SLO_TTFT] == 1


def test_a_wait_that_will_be_too_long_is_foreseen_from_how_fast_the_line_moves() -> None:
    client = make_client("m")
    for number in range(40):
        client.submit(f"a{number}", max_tokens=2)
    for number in range(20):
        assert finish(client, f"a{number}", now=float(number + 1)) == [f"a{number + 1}"]
    client.submit("patient", now=20.0, context=of(ttft_s=60.0))
    assert client.ends[-1].request_id == "a19"
    client.submit("hasty", now=20.0, context=of(ttft_s=10.0))
    assert refusal(client).request_id == "hasty"
    assert refusal(client).retry_after_s == pytest.approx(9.0, rel=0.3)


def test_workers_that_are_too_slow_for_a_request_are_left_out() -> None:
    client = make_client("m", "n", max_num_seqs=8)
    client.heartbeat("m", rates=RATES)
    client.heartbeat("n", rates=WorkerRates(decode_step_s=0.01))
    for number in range(3):
        ((worker_id, _),) = client.submit(f"a{number}", first=50 * number, context=of(tpot_s=0.02))
        assert worker_id == "n"
    client.submit("b", context=of(tpot_s=0.005))
    assert refusal(client).message == "slo_tpot_s is 0.005; the fastest worker needs 0.01 s a token"
    assert client.core.admission.num_by_outcome[AdmissionOutcome.SLO_TPOT] == 1


# --- rates that may be wrong ---


def test_an_idle_worker_is_tried_with_one_request_although_its_last_steps_were_too_slow() -> None:
    client = make_client("m", max_num_seqs=8)
    client.heartbeat("m", rates=RATES)
    client.submit("early", now=5.0, context=of(tpot_s=0.02))
    assert refusal(client).message == "slo_tpot_s is 0.02; the fastest worker needs 0.05 s a token"
    assert names(client.submit("a", now=5.1, context=of(tpot_s=0.02))) == ["a"]
    assert client.submit("b", now=5.1, context=of(tpot_s=0.02)) == [], "one request is enough"
    finish(client, "a", now=6.0)
    client.heartbeat("m", now=6.0, rates=replace(RATES, num_decode_steps=1))
    assert client.submit("c", now=11.0, context=of(tpot_s=0.02)) == [], "its steps are as slow as before"
    client.heartbeat("m", now=11.0, rates=replace(RATES, num_decode_steps=1), num_running=1)
    assert client.submit("d", now=20.0, context=of(tpot_s=0.02)) == [], "it is not idle"


def test_an_idle_worker_is_tried_with_a_prompt_that_would_be_late_once_in_ten_times_as_long() -> None:
    client = make_client("m", max_num_seqs=8)
    client.heartbeat("m", rates=RATES)
    for now in (5.1, 8.4):
        assert client.submit(f"early{now}", now=now, prompt=8, context=of(ttft_s=0.5)) == []
    assert names(client.submit("a", now=8.6, prompt=8, context=of(ttft_s=0.5))) == ["a"]
    assert client.submit("b", now=8.6, prompt=8, first=100, context=of(ttft_s=0.5)) == [], "it is not idle"
    finish(client, "a", now=9.0)
    assert client.submit("c", now=15.0, prompt=8, context=of(ttft_s=0.5)) == [], "one like it was measured"
    assert client.submit("d", now=90.0, prompt=100, context=of(ttft_s=0.5)) == [], "it would take 10 s"
    late = RequestContext(slo=Slo(ttft_s=0.5), arrived_s=89.4)
    assert client.submit("e", now=90.0, prompt=8, context=late) == [], "it is late already"


def test_short_prompts_say_little_of_long_ones() -> None:
    client = make_client("m", max_num_seqs=8)
    client.heartbeat("m", rates=RATES)
    for number in range(5, 17):
        name, now = f"short{number}", float(number)
        assert names(client.submit(name, now=now, prompt=2, context=of(ttft_s=0.5))) == [name]
        finish(client, name, now=now)
        client.heartbeat("m", now=now, rates=replace(RATES, num_prefill_steps=number))
    assert names(client.submit("long", now=17.0, prompt=16, first=50, context=of(ttft_s=0.5))) == ["long"]


# --- rates ---


def test_a_tenants_rate_is_limited_and_the_others_are_not() -> None:
    client = make_client("m", max_num_seqs=99, rate_limit=RateLimit(requests=2))
    for name in ("a1", "a2", "a3", "b1"):
        client.submit(name, context=of(name[0]))
    text = "requests per minute of this key are at their limit of 2; there is room in 30 s"
    assert (rate_refusal(client).request_id, rate_refusal(client).message) == ("a3", text)
    assert rate_refusal(client).retry_after_s == pytest.approx(30.0)
    assert names(client.submit("a4", now=30.0, context=of("a"))) == ["a4"]
    assert client.core.admission.num_by_outcome[AdmissionOutcome.REQUEST_RATE] == 1


def test_a_call_fits_as_a_whole_or_passes_where_nothing_is_used() -> None:
    client = make_client("m", max_num_seqs=99, rate_limit=RateLimit(requests=6))
    submit_call(client, "a", 4)
    assert not client.ends
    submit_call(client, "b", 3)
    text = "requests per minute of this key are at their limit of 6; there is room in 10 s"
    assert (rate_refusal(client).request_id, rate_refusal(client).message) == ("b0", text)
    submit_call(client, "c", 7, now=40.0)
    assert [end.request_id for end in client.ends] == ["b0"], "the refused call used nothing"
    client.submit("d", now=50.0)
    assert rate_refusal(client).message.endswith("there is room in 10 s")


def submit_call(client: Client, name: str, size: int, *, now: float = 0.0, tenant: str = "") -> None:
    """Submit the requests of one call, until one is refused."""
    specs = [make_request(f"{name}{number}") for number in range(size)]
    num_ends = len(client.ends)
    for number, spec in enumerate(specs):
        examined = () if number else specs
        client.feed(Submit(spec=spec, timeout_s=100.0, examined=examined, context=of(tenant)), now=now)
        if len(client.ends) > num_ends:
            return


def test_tokens_are_charged_as_expected_and_then_as_they_were() -> None:
    client = make_client("m", max_num_seqs=99, rate_limit=RateLimit(tokens=40))
    client.submit("a", prompt=8, max_tokens=30)
    client.submit("b", prompt=8, max_tokens=30)
    assert rate_refusal(client).request_id == "b"
    assert client.core.admission.num_by_outcome[AdmissionOutcome.TOKEN_RATE] == 1
    finish(client, "a", now=0.0)
    client.submit("c", prompt=8, max_tokens=22)
    assert names(client.sent[-1:]) == ["c"]


def test_a_request_that_never_got_a_worker_costs_no_tokens() -> None:
    client = make_client("m", rate_limit=RateLimit(tokens=40))
    client.submit("a", prompt=8, max_tokens=2, context=of("x"))
    client.submit("b", prompt=8, max_tokens=30, context=of("y"))
    client.feed(ClientGone(request_id="b"))
    client.submit("c", prompt=8, max_tokens=32, context=of("y"))
    assert [end.request_id for end in client.ends] == ["b"]
