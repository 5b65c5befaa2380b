"""A call that breaks and is resumed is charged once."""

from __future__ import annotations

import pytest

from baton_core.requests.finish import FinishReason
from baton_core.requests.request_context import RequestContext
from baton_router.core.admission.admission import AdmissionConfig
from baton_router.core.admission.broken_calls import MAX_RESUMPTIONS, BrokenCalls, Spent
from baton_router.core.admission.rate_limits import RateLimit
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import ClientGone, FailRequest, Submit
from tests.builders import make_request
from tests.unit.core.routers import Client, first_token, tokens

LIMIT = RateLimit(requests=2, tokens=120)


def make_client() -> Client:
    return Client("m", split=SplitMode.NEVER, admission=AdmissionConfig(rate_limit=LIMIT))


def submit(client: Client, name: str, *, call: str, tenant: str = "a") -> bool:
    """Return whether a call of 40 prompt tokens and 20 others is taken."""
    spec = make_request(name, prompt=40, max_tokens=20)
    context = RequestContext(tenant=tenant)
    client.feed(Submit(spec=spec, timeout_s=100.0, context=context, call=call))
    return not (client.ends and client.ends[-1].request_id == name)


def break_off(client: Client, name: str) -> None:
    """Give the client its first token, after which it is gone."""
    client.says("m", first_token(name, tokens(name, 0, 5)))
    client.feed(ClientGone(request_id=name))


def test_what_a_broken_call_was_charged_is_not_charged_again() -> None:
    client = make_client()
    for number in range(3):
        assert submit(client, f"r{number}", call="r")
        break_off(client, f"r{number}")
    assert submit(client, "last", call="r")
    client.says("m", first_token("last", tokens("last", 0, 5, reason=FinishReason.STOP)))
    assert submit(client, "s", call="s"), "41 of 120 tokens and one of two requests are used"
    assert not submit(client, "t", call="t")


def test_another_call_and_that_of_another_key_are_charged() -> None:
    client = make_client()
    assert submit(client, "r", call="r")
    break_off(client, "r")
    assert submit(client, "s", call="s")
    assert not submit(client, "t", call="t")
    assert submit(client, "b", call="r", tenant="b")
    break_off(client, "b")
    assert submit(client, "b2", call="b2", tenant="b")
    assert not submit(client, "b3", call="b3", tenant="b")


def test_a_call_that_finished_or_has_no_name_is_charged_again() -> None:
    client = make_client()
    assert submit(client, "r", call="r")
    client.says("m", first_token("r", tokens("r", 0, 5, reason=FinishReason.STOP)))
    assert submit(client, "r2", call="r")
    assert not submit(client, "r3", call="")
    assert isinstance(client.ends[-1], FailRequest)


def test_a_call_is_resumed_for_nothing_so_often_and_the_oldest_are_forgotten() -> None:
    calls = BrokenCalls(max_calls=2)
    for number in range(MAX_RESUMPTIONS):
        charge = calls.resume("a", "r")
        assert charge == (
            Spent(num_requests=1, num_tokens=7, num_resumptions=number - 1) if number else Spent()
        )
        calls.add("a", "r", charge, 7)
    assert calls.spent("a", "r").num_resumptions == MAX_RESUMPTIONS - 1
    calls.add("a", "r", calls.resume("a", "r"), 7)
    assert calls.spent("a", "r") == Spent()
    for name in ("x", "y", "z"):
        calls.add("a", name, Spent(), 1)
    assert [calls.spent("a", name).num_requests for name in ("x", "y", "z")] == [0, 1, 1]


@pytest.mark.parametrize("num_breaks", [1, MAX_RESUMPTIONS])
def test_a_break_gives_nothing_back(num_breaks: int) -> None:
    client = make_client()
    assert submit(client, "r", call="r")
    break_off(client, "r")
    for number in range(num_breaks):
        submit(client, f"r{number}", call="r")
        client.feed(ClientGone(request_id=f"r{number}"))
    assert submit(client, "s", call="s")
    assert not submit(client, "t", call="t")
