"""The waiting queue under any sequence of comings, turns and goings."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton_core.fair_queue import MAX_MISSES, MAX_PASSED, FairQueue

AGING_S = 10.0


class Lines(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(AGING_S)
        self.waiting: dict[str, tuple[str, float, int]] = {}
        """Tenant, urgency and tokens by name, in the order in which they came."""
        self.passed: dict[str, int] = {}
        self.num_joined = 0
        self.now = 0.0

    @rule(
        tenant=st.sampled_from("abc"),
        num_tokens=st.integers(0, 500),
        priority=st.integers(-3, 3),
        elapsed_s=st.floats(0, 20),
    )
    def join(self, tenant: str, num_tokens: int, priority: int, elapsed_s: float) -> None:
        self.now += elapsed_s
        self.num_joined += 1
        name = f"r{self.num_joined}"
        self.queue.join(name, tenant=tenant, num_tokens=num_tokens, priority=priority, since_s=self.now)
        self.waiting[name] = (tenant, priority * AGING_S + self.now, num_tokens)
        self.passed[name] = 0

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.waiting)))
        self.queue.drop(name)
        del self.waiting[name]

    @precondition(lambda self: self.waiting)
    @rule(seed=st.randoms(use_true_random=False), room=st.integers(0, 5))
    def dispatch(self, seed: Random, room: int) -> None:
        """Some have room, others not; a tenant's own come in order, and nobody is passed too often."""
        tried: list[str] = []
        missed: list[str] = []
        for name in self.queue.dispatch():
            assert name in self.waiting
            assert name not in tried
            tenant, urgency, num_tokens = self.waiting[name]
            is_late = len(missed) >= MAX_MISSES
            smallest = min((self.waiting[other][2] for other in missed), default=0)
            assert not is_late or num_tokens < smallest or self.queue.is_overdue(name)
            for other, (its_tenant, its_urgency, its_tokens) in self.waiting.items():
                if its_tenant == tenant and its_urgency < urgency and other not in tried:
                    assert is_late
                    assert its_tokens >= smallest
            tried.append(name)
            if room and seed.random() < 0.6:
                room -= 1
                self.queue.take(name)
                del self.waiting[name]
                for other in missed:
                    self.passed[other] += 1
            else:
                missed.append(name)
                if self.queue.is_overdue(name):
                    break
        is_whole = len(missed) < MAX_MISSES and all(self.passed[name] < MAX_PASSED for name in missed)
        assert not is_whole or set(missed) == set(self.waiting)

    @invariant()
    def nobody_is_lost_or_there_twice(self) -> None:
        self.queue.check_invariants()
        assert len(self.queue) == len(self.waiting)
        assert all(name in self.queue for name in self.waiting)
        assert self.queue.num_tokens == sum(tokens for _, _, tokens in self.waiting.values())
        assert max((self.passed[name] for name in self.waiting), default=0) <= MAX_PASSED + MAX_MISSES

    @invariant()
    def the_one_that_gives_way_is_of_the_tenant_with_the_most(self) -> None:
        name = self.queue.last_of_longest()
        assert (name is None) == (not self.waiting)
        if name is not None:
            tenants = [tenant for tenant, _, _ in self.waiting.values()]
            tenant, urgency, _ = self.waiting[name]
            assert tenants.count(tenant) == max(map(tenants.count, tenants))
            assert urgency == max(one[1] for one in self.waiting.values() if one[0] == tenant)


Lines.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFairQueue = Lines.TestCase
