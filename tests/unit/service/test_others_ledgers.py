from __future__ import annotations

from baton_core.routing.charge import Charge
from baton_core.routing.router_events import OthersGave
from baton_service.shared_state.ledgers import LEASE_S, OthersLedgers
from baton_service.shared_state.records import Ledger

ONE = (Charge("w1", num_tokens=5),)


def ledger(number: int, router_id: str = "r2", charges: tuple[Charge, ...] = ONE) -> Ledger:
    return Ledger(router_id=router_id, number=number, charges=charges)


def test_a_ledger_is_told_once_and_an_older_one_never() -> None:
    others = OthersLedgers("r1")
    assert others.hear(0.0, ledger(2)) == OthersGave(router_id="r2", charges=ONE)
    assert others.hear(0.1, ledger(2)) is None
    assert others.hear(0.2, ledger(1, charges=())) is None
    assert others.hear(0.3, ledger(3, charges=())) == OthersGave(router_id="r2", charges=())


def test_a_routers_own_ledger_and_one_without_a_change_are_not_told() -> None:
    others = OthersLedgers("r1")
    assert others.hear(0.0, ledger(7, "r1")) is None
    assert others.hear(0.0, ledger(0, charges=())) is None


def test_a_router_that_redis_does_not_have_any_more_has_given_nothing() -> None:
    others = OthersLedgers("r1")
    others.hear(0.0, ledger(1))
    others.hear(0.0, ledger(1, "r3"))
    assert others.miss(1.0, {"r3"}) == [], "it may be on its way to register again"
    assert others.miss(2.0, {"r3"}) == [OthersGave(router_id="r2", charges=())]
    assert others.miss(3.0, {"r3"}) == []
    assert others.hear(3.5, ledger(1)) == OthersGave(router_id="r2", charges=ONE), "it is back"


def test_a_ledger_is_believed_no_longer_than_its_lease_when_redis_is_away() -> None:
    others = OthersLedgers("r1")
    others.hear(10.0, ledger(1))
    assert others.expire(10.0 + LEASE_S - 0.1) == []
    assert others.expire(10.0 + LEASE_S) == [OthersGave(router_id="r2", charges=())]


def test_the_first_by_name_of_those_that_live_acts_for_all() -> None:
    others = OthersLedgers("r2")
    assert others.is_own_first
    others.hear(0.0, ledger(1, "r3"))
    assert others.is_own_first
    others.hear(0.0, ledger(1, "r1"))
    assert not others.is_own_first
    others.expire(LEASE_S)
    assert others.is_own_first
