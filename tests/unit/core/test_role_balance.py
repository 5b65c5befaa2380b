"""Which worker gets which role, when, and that it stays there."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from baton_core.sessions.worker_info import Role, WorkerLoad, WorkerRates
from baton_router.core.fleet.role_balance import BalanceConfig, RoleBalance
from baton_router.core.fleet.role_pressure import Limits, Waiting, Worker, measure
from baton_router.core.fleet.scaling import RoleScaling
from baton_router.core.router_events import SetRole
from tests.builders import make_worker_info

P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED
CONFIG = BalanceConfig(window=3, dwell_s=20.0)
NOBODY = Waiting()
RATE = 1000.0


def worker(name: str, given: Role, *, queue_s: float = 0.0, fullness: float = 0.0, **load: Any) -> Worker:
    """One that has prompts for so long a time and so many of its 16 sequences."""
    fields = {
        "num_queued_tokens": round(queue_s * RATE),
        "num_running": round(16 * fullness),
        "num_available_blocks": 1024,
        "rates": WorkerRates(prefill_tokens_per_s=RATE),
    }
    return make_worker_info(name, given), WorkerLoad(**{**fields, **load})


def fleet(prefill: int, decode: int, mixed: int = 0, *, queue_s: float, fullness: float) -> list[Worker]:
    """All prefill workers have the same queue, all decode workers are equally full, mixed ones both."""
    return [
        *(worker(f"p{number}", P, queue_s=queue_s) for number in range(prefill)),
        *(worker(f"d{number}", D, fullness=fullness) for number in range(decode)),
        *(worker(f"m{number}", M, queue_s=queue_s, fullness=fullness) for number in range(mixed)),
    ]


def watch(
    balance: RoleBalance, workers: list[Worker], *, from_s: float = 0.0, evaluations: int = 10, **waiting: int
) -> list[SetRole]:
    shifts = []
    for number in range(evaluations):
        now = from_s + number
        assert balance.is_due(now)
        shifts += balance.evaluate(now, workers, Waiting(**waiting))
        assert balance.next_deadline() == now + CONFIG.interval_s
    return shifts


def shift_of(workers: list[Worker], **waiting: int) -> tuple[str, Role] | None:
    shifts = watch(RoleBalance(CONFIG), workers, **waiting)
    return (shifts[0].worker_id, shifts[0].role) if shifts else None


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (fleet(2, 3, queue_s=3.0, fullness=0.2), ("d0", P)),
        (fleet(3, 2, queue_s=0.0, fullness=0.9), ("p0", D)),
        (fleet(2, 3, queue_s=0.9, fullness=0.8), None),
        (fleet(2, 3, queue_s=3.0, fullness=0.95), None),
        (fleet(0, 0, 3, queue_s=3.0, fullness=0.2), ("m0", P)),
    ],
    ids=["prefill is short", "decode is short", "nothing is", "both are", "mixed workers"],
)
def test_the_role_that_is_short_gets_a_worker_of_the_one_that_is_not(
    workers: list[Worker], expected: tuple[str, Role] | None
) -> None:
    assert shift_of(workers) == expected


def test_the_worker_with_the_least_to_do_is_taken_and_its_work_counts_as_a_whole() -> None:
    workers = [worker("p", P, queue_s=2.0), worker("d0", D, fullness=0.5), worker("d1", D, fullness=0.1)]
    assert shift_of(workers) == ("d1", P)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (fleet(1, 1, queue_s=5.0, fullness=0.3), ("d0", M)),
        (fleet(1, 1, queue_s=0.0, fullness=1.0), ("p0", M)),
        (fleet(1, 2, queue_s=5.0, fullness=0.6), ("d0", M)),
        (fleet(1, 0, 1, queue_s=5.0, fullness=0.3), None),
        (fleet(1, 0, 2, queue_s=5.0, fullness=0.6), None),
    ],
    ids=["last decoder", "last prefiller", "the other would be too full", "last of both", "two of both"],
)
def test_a_worker_that_cannot_be_spared_does_both_from_then_on(
    workers: list[Worker], expected: tuple[str, Role] | None
) -> None:
    assert shift_of(workers) == expected


def test_what_an_operator_has_given_and_who_takes_no_requests_is_left_alone() -> None:
    short = worker("p", P, queue_s=5.0)
    fixed, idle = worker("a", D, is_role_fixed=True), worker("b", D)
    assert shift_of([short, fixed, idle]) == ("b", P)
    assert shift_of([short, fixed]) is None
    away = [worker("a", D, is_draining=True), worker("b", D, is_asleep=True), worker("c", D)]
    assert shift_of([short, *away]) == ("c", M)


def test_the_role_of_now_counts_and_not_the_one_of_registration() -> None:
    workers = [worker("a", D, role=P, queue_s=5.0), worker("b", P, role=D), worker("c", P, role=D)]
    assert shift_of(workers) == ("b", P)


def test_requests_without_a_worker_add_to_what_is_shorter_already() -> None:
    assert shift_of(fleet(2, 3, queue_s=0.5, fullness=0.1), num_requests=9, num_tokens=3000) == ("d0", P)
    assert shift_of(fleet(3, 2, queue_s=0.0, fullness=0.8), num_requests=9, num_tokens=3000) == ("p0", D)


def test_blocks_and_the_time_of_a_step_make_a_worker_full_too() -> None:
    full = worker("d", D, num_available_blocks=103)
    assert measure([full], NOBODY, Limits()).decode.use == pytest.approx(0.9, abs=0.01)
    slow = worker("d", D, num_running=1, rates=WorkerRates(decode_step_s=0.05))
    assert measure([slow], NOBODY, Limits(step_s=0.05, fullness=0.8)).decode.need == 1.25
    assert measure([slow], NOBODY, Limits()).decode.use == 1 / 16


def test_a_burst_shorter_than_the_window_shifts_nothing() -> None:
    balance = RoleBalance(CONFIG)
    calm, busy = fleet(1, 2, queue_s=0.0, fullness=0.1), fleet(1, 2, queue_s=2.9, fullness=0.1)
    for now in range(0, 60, 3):
        assert watch(balance, calm, from_s=now, evaluations=2) == []
        assert watch(balance, busy, from_s=now + 2, evaluations=1) == []


def test_after_a_shift_nothing_is_shifted_until_the_dwell_time_is_over() -> None:
    balance, workers = RoleBalance(CONFIG), fleet(1, 4, queue_s=9.0, fullness=0.1)
    assert len(watch(balance, workers, evaluations=22)) == 1
    assert len(watch(balance, workers, from_s=22, evaluations=1)) == 1
    assert [(shift.at_s, shift.before, shift.after) for shift in balance.shifts] == [
        (2.0, D, P),
        (22.0, D, P),
    ]
    assert balance.num_shifts == {(D, P): 2}
    assert balance.shifts[0].reason == "prefill at 900% of its limit, decode at 15%"


def test_a_router_that_is_not_the_balancer_looks_but_shifts_nothing() -> None:
    balance, workers = RoleBalance(CONFIG), fleet(1, 4, queue_s=9.0, fullness=0.1)
    balance.is_balancer = False
    assert watch(balance, workers) == []
    balance.is_balancer = True
    assert len(watch(balance, workers, from_s=10, evaluations=1)) == 1


def test_without_a_configuration_it_is_never_due() -> None:
    balance = RoleBalance()
    assert (balance.next_deadline(), balance.is_due(1e9)) == (None, False)


class Fluid:
    """Workers as tanks: prompts flow in and are computed; sequences flow in and go on for ten seconds."""

    def __init__(self, roles: list[Role], *, seed: int) -> None:
        self.roles = {f"w{number}": role for number, role in enumerate(roles)}
        self._queued = dict.fromkeys(self.roles, 0.0)
        self._running = dict.fromkeys(self.roles, 0.0)
        self._rng = Random(seed)
        self._balance = RoleBalance(BalanceConfig())

    def run(self, *, until_s: int, tokens_per_s: float, sequences: float, noise: float) -> list[float]:
        """Under a load that needs so much of both, up to `noise` more or less; when roles were shifted."""
        first = len(self._balance.shifts)
        for now in range(int(self._balance.next_deadline() or 0), until_s):
            level = self._rng.uniform(1 - noise, 1 + noise)
            inflow = self._flow(self._queued, P, level * tokens_per_s, kept=1.0, drained=RATE)
            self._flow(self._running, D, level * sequences / 10, kept=0.9)
            for shift in self._balance.evaluate(float(now), self._workers(inflow / RATE), NOBODY):
                self.roles[shift.worker_id] = shift.role
        return [shift.at_s for shift in list(self._balance.shifts)[first:]]

    def count(self, role: Role) -> int:
        return sum(one is role for one in self.roles.values())

    def _flow(
        self, tanks: dict[str, float], role: Role, amount: float, *, kept: float, drained: float = 0.0
    ) -> float:
        """Spread it over the workers of that role; all of them go on with what they have."""
        able = [name for name, one in self.roles.items() if one in (role, M)]
        for name in tanks:
            inflow = amount / len(able) if name in able else 0.0
            tanks[name] = max(0.0, kept * tanks[name] + inflow - drained)
        return amount / len(able)

    def _workers(self, use: float) -> list[Worker]:
        """A prefill worker that keeps up is seen with a prompt as often as it computes one."""
        return [
            worker(
                name,
                role,
                num_queued_tokens=int(self._queued[name]) + (role is not D and self._rng.random() < use),
                num_running=round(self._running[name]),
            )
            for name, role in self.roles.items()
        ]


@pytest.mark.slow
@pytest.mark.parametrize("start", [[P, *[D] * 5], [*[P] * 5, D], [M] * 6])
def test_a_wrong_ratio_becomes_right_and_stays_so_under_a_noisy_load(start: list[Role]) -> None:
    for seed in range(2):
        fluid = Fluid(start, seed=seed)
        fluid.run(until_s=400, tokens_per_s=2600.0, sequences=20.0, noise=0.4)
        assert fluid.count(P) + fluid.count(M) >= 3
        assert fluid.count(D) + fluid.count(M) >= 2
        assert fluid.run(until_s=1500, tokens_per_s=2600.0, sequences=20.0, noise=0.4) == []


@pytest.mark.slow
def test_roles_follow_a_load_that_turns_around_and_shift_no_more_often_than_it_does() -> None:
    fluid = Fluid([P, P, P, D, D, D], seed=1)
    for number in range(6):
        tokens_per_s, sequences = ((3600.0, 12.0), (800.0, 56.0))[number % 2]
        load = {"tokens_per_s": tokens_per_s, "sequences": sequences, "noise": 0.3}
        shifts = fluid.run(until_s=600 * number + 300, **load)
        assert 1 <= len(shifts) <= 4
        assert fluid.run(until_s=600 * number + 600, **load) == []


@pytest.mark.parametrize(
    ("prefill", "decode", "workers", "expected"),
    [
        ((2, 3), (3, 2), fleet(2, 3, queue_s=0.5, fullness=0.4), ("d0", P)),
        ((3, 2), (2, 3), fleet(3, 2, queue_s=0.0, fullness=0.7), ("p0", D)),
        ((2, 3), (3, 3), fleet(2, 3, queue_s=0.5, fullness=0.4), None),
        ((2, 3), (3, 2), fleet(2, 3, queue_s=0.5, fullness=0.75), ("d0", M)),
        ((2, 1), (3, 2), fleet(2, 3, queue_s=0.5, fullness=0.4), None),
    ],
    ids=["prefill lacks one", "decode lacks one", "no other may give", "the others are full", "both may"],
)
def test_a_recommendation_moves_a_worker_before_there_is_pressure(
    prefill: tuple[int, int],
    decode: tuple[int, int],
    workers: list[Worker],
    expected: tuple[str, Role] | None,
) -> None:
    recommended = [
        RoleScaling(role=role, num_workers=now, num_needed=want, num_desired=want, reason="of a reason")
        for role, (now, want) in ((P, prefill), (D, decode), (M, (5, 5)))
    ]
    balance, shifts = RoleBalance(CONFIG), []
    for now in range(10):
        shifts += balance.evaluate(now, workers, NOBODY, recommended)
    assert [(one.worker_id, one.role) for one in shifts] == ([expected] if expected else [])
    assert all("of a reason" in one.reason for one in shifts)
