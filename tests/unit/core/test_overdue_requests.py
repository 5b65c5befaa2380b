"""Requests that others have passed long enough: what waits for their workers, and what does not."""

from __future__ import annotations

from typing import Any

from baton_core.fair_queue import MAX_PASSED
from baton_core.requests.finish import FinishReason
from baton_core.requests.request_context import RequestContext, Slo
from baton_core.sessions.router_messages import Generate, Prefill
from baton_core.sessions.worker_info import WorkerRates
from baton_router.core.admission.admission import AdmissionConfig
from baton_router.core.admission.admission_gate import DispatchLimit
from baton_router.core.flow.flow_state import FlowState
from baton_router.core.placement.placement_config import SplitMode
from tests.unit.core.routers import Client, first_token, refused, tokens

A, B = RequestContext(tenant="a"), RequestContext(tenant="b")


def serve_short(client: Client, number: int, decoder: str, num_blocks: int, **load: Any) -> list[str]:
    """Submit a short request and compute it at its worker; returns that worker, or nothing if it waits."""
    name, now = f"short{number}", 0.1 * number
    sent = client.submit(name, prompt=8, max_tokens=4, context=B, now=now)
    sent += client.heartbeat(decoder, num_available_blocks=num_blocks, now=now, **load)
    places = [worker_id for worker_id, message in sent if isinstance(message, Generate | Prefill)]
    for worker_id in places:
        last = tokens(name, 0, 5, reason=FinishReason.STOP)
        client.says(worker_id, first_token(name, last), now=now)
    return places


def test_a_request_for_a_full_worker_holds_up_no_other_worker() -> None:
    limit = DispatchLimit(sequences_per_seat=1.0)
    client = Client(split=SplitMode.NEVER, admission=AdmissionConfig(dispatch_limit=limit))
    client.join("m", max_num_seqs=1, max_model_len=256)
    client.join("m2", max_num_seqs=1, max_model_len=4096)
    client.submit("busy", prompt=1000, max_tokens=2000, context=A)
    client.submit("long", prompt=1000, max_tokens=2000, context=A)
    served = [serve_short(client, number, "m", 1000) for number in range(3 * MAX_PASSED)]
    assert served == [["m"]] * len(served)
    assert client.core.admission.num_waiting == 1


def test_workers_that_could_take_an_overdue_request_get_no_other() -> None:
    client = Client("p", "d")
    client.heartbeat("d", num_available_blocks=8)
    client.submit("long", prompt=1000, context=A)
    served = [serve_short(client, number, "d", 8) for number in range(MAX_PASSED + 3)]
    assert served == [["p"]] * MAX_PASSED + [[]] * 3
    client.heartbeat("d", num_available_blocks=1000, now=20.0)
    placed = [message.spec.request_id for _, message in client.sent if isinstance(message, Prefill)]
    assert placed[MAX_PASSED:] == ["long", *(f"short{MAX_PASSED + number}" for number in range(3))]


def test_a_stream_that_has_begun_waits_for_full_workers_beyond_the_queue_timeout() -> None:
    client = Client("p", "d")
    client.submit()
    client.says("p", first_token(), now=1.0)
    client.says("d", refused(), now=2.0)
    client.wait(17.0)
    (flow,) = client.core._flows.values()
    client.heartbeat("d", now=17.5)
    client.says("d", refused(flow.attempt_id), now=18.0)
    client.wait(30.5)
    client.heartbeat("d", now=31.0)
    assert not client.ends
    assert flow.state is FlowState.SPLIT


def test_a_request_too_fast_for_an_idle_worker_does_not_keep_it_idle() -> None:
    limit = DispatchLimit(sequences_per_seat=1.0)
    client = Client(split=SplitMode.NEVER, admission=AdmissionConfig(dispatch_limit=limit))
    rates = {"m": WorkerRates(decode_step_s=0.1), "m2": WorkerRates(decode_step_s=0.01)}
    for name in rates:
        client.join(name, max_num_seqs=1)
        client.heartbeat(name, rates=rates[name])
    fast = RequestContext(tenant="a", slo=Slo(tpot_s=0.05))
    client.submit("busy", prompt=100, max_tokens=100, context=fast)
    client.submit("fast", prompt=100, max_tokens=100, context=fast)
    served = [serve_short(client, number, "m", 1000, rates=rates["m"]) for number in range(MAX_PASSED + 3)]
    assert served == [["m"]] * len(served)
    assert client.core.admission.num_waiting == 1


def test_a_request_for_weights_that_no_worker_has_keeps_no_worker() -> None:
    client = Client("m", split=SplitMode.NEVER)
    client.submit("lost", prompt=100, max_tokens=100, weights="other", context=A)
    served = [serve_short(client, number, "m", 1000) for number in range(MAX_PASSED + 3)]
    assert served == [["m"]] * len(served)
