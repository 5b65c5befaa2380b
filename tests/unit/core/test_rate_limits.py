from __future__ import annotations

from baton_router.core.admission.rate_limits import Rate, RateLimit, RateLimits, Shortage


def ask(limits: RateLimits, now: float, tenant: str = "a", num_tokens: int = 10) -> Shortage | None:
    """Ask for a request, and take it if that is allowed."""
    shortage = limits.shortage(now, tenant, num_tokens)
    if shortage is None:
        limits.spend(now, tenant, num_requests=1, num_tokens=num_tokens)
    return shortage


def test_without_a_limit_nobody_is_remembered() -> None:
    limits = RateLimits(RateLimit())
    assert all(ask(limits, 0.0) is None for _ in range(1000))
    assert limits.num_tenants == 0


def test_a_minutes_worth_may_come_at_once_and_then_as_much_as_flows_in() -> None:
    limits = RateLimits(RateLimit(requests=60))
    assert [ask(limits, 0.0) for _ in range(60)] == [None] * 60
    assert ask(limits, 0.0) == Shortage(rate=Rate.REQUESTS, limit=60, wait_s=1.0)
    assert ask(limits, 0.5) == Shortage(rate=Rate.REQUESTS, limit=60, wait_s=0.5)
    assert ask(limits, 1.0) is None
    assert ask(limits, 1.0) is not None


def test_what_is_not_used_in_a_minute_is_lost() -> None:
    limits = RateLimits(RateLimit(requests=2))
    assert [ask(limits, 3600.0) is None for _ in range(3)] == [True, True, False]


def test_tokens_are_counted_and_what_was_charged_too_much_comes_back() -> None:
    limits = RateLimits(RateLimit(tokens=600))
    assert ask(limits, 0.0, num_tokens=500) is None
    assert ask(limits, 0.0, num_tokens=200) == Shortage(rate=Rate.TOKENS, limit=600, wait_s=10.0)
    limits.spend(0.0, "a", num_tokens=-400)
    assert ask(limits, 0.0, num_tokens=200) is None


def test_more_than_a_bucket_holds_passes_when_it_is_full_and_leaves_a_debt() -> None:
    limits = RateLimits(RateLimit(tokens=60))
    assert ask(limits, 0.0, num_tokens=180) is None
    assert ask(limits, 0.0, num_tokens=1) == Shortage(rate=Rate.TOKENS, limit=60, wait_s=121.0)


def test_the_longer_wait_is_told() -> None:
    limits = RateLimits(RateLimit(requests=1, tokens=60))
    assert ask(limits, 0.0, num_tokens=60) is None
    assert ask(limits, 0.0, num_tokens=1) == Shortage(rate=Rate.REQUESTS, limit=1, wait_s=60.0)


def test_tenants_do_not_use_each_others_share_and_so_many_are_remembered() -> None:
    limits = RateLimits(RateLimit(requests=1), max_tenants=2)
    assert [ask(limits, 0.0, tenant) is None for tenant in "aabb"] == [True, False, True, False]
    assert ask(limits, 0.0, "c") is None
    assert limits.num_tenants == 2
    assert ask(limits, 0.0, "b") is not None


def test_processes_of_a_router_share_their_limits_by_what_each_has_spent() -> None:
    here, there = (RateLimits(RateLimit(requests=10, tokens=100)) for _ in range(2))
    assert [ask(here, 0.0) for _ in range(4)] == [None] * 4
    here.spend(0.0, "a", num_tokens=-5)
    (spent,) = here.take_unshared()
    assert spent == ("a", 4, 35.0)
    assert here.take_unshared() == ()
    there.spend_elsewhere(0.0, spent)
    assert there.take_unshared() == ()
    assert [ask(there, 0.0) for _ in range(6)] == [None] * 6
    assert ask(there, 0.0) is not None
