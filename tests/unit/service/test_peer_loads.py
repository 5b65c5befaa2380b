from __future__ import annotations

from baton_core.load_reservation import LoadReservation
from baton_router.core.router_events import PeerLoad
from baton_router.redis.load_exchange import LEASE_S, PeerLoads
from baton_service.redis.records import RouterLoad

ONE = (LoadReservation("w1", num_tokens=5),)


def load(number: int, router_id: str = "r2", reservations: tuple[LoadReservation, ...] = ONE) -> RouterLoad:
    return RouterLoad(router_id=router_id, number=number, reservations=reservations)


def test_a_load_is_published_once_and_an_older_one_never() -> None:
    peers = PeerLoads("r1")
    assert peers.update(0.0, load(2)) == PeerLoad(router_id="r2", reservations=ONE)
    assert peers.update(0.1, load(2)) is None
    assert peers.update(0.2, load(1, reservations=())) is None
    assert peers.update(0.3, load(3, reservations=())) == PeerLoad(router_id="r2", reservations=())


def test_a_routers_own_load_and_one_without_a_change_are_not_published() -> None:
    peers = PeerLoads("r1")
    assert peers.update(0.0, load(7, "r1")) is None
    assert peers.update(0.0, load(0, reservations=())) is None


def test_a_router_that_redis_does_not_have_any_more_has_given_nothing() -> None:
    peers = PeerLoads("r1")
    peers.update(0.0, load(1))
    peers.update(0.0, load(1, "r3"))
    assert peers.drop_missing(1.0, {"r3"}) == [], "it may be on its way to register again"
    assert peers.drop_missing(2.0, {"r3"}) == [PeerLoad(router_id="r2", reservations=())]
    assert peers.drop_missing(3.0, {"r3"}) == []
    assert peers.update(3.5, load(1)) == PeerLoad(router_id="r2", reservations=ONE), "it is back"


def test_a_load_is_believed_no_longer_than_its_lease_when_redis_is_away() -> None:
    peers = PeerLoads("r1")
    peers.update(10.0, load(1))
    assert peers.expire(10.0 + LEASE_S - 0.1) == []
    assert peers.expire(10.0 + LEASE_S) == [PeerLoad(router_id="r2", reservations=())]


def test_the_first_by_name_of_those_that_live_acts_for_all() -> None:
    peers = PeerLoads("r2")
    assert peers.is_own_first
    peers.update(0.0, load(1, "r3"))
    assert peers.is_own_first
    peers.update(0.0, load(1, "r1"))
    assert not peers.is_own_first
    peers.expire(LEASE_S)
    assert peers.is_own_first
