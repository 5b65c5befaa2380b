from __future__ import annotations

import math
from collections.abc import Sequence

from baton_core.fair_queue import MAX_MISSES, MAX_PASSED, MAX_SKIPPED, FairQueue


def make_queue(*requests: str) -> FairQueue:
    """Requests are named by tenant and number: a1, a2, b1; each of 100 tokens, a second after the other."""
    queue = FairQueue(10.0)
    for number, name in enumerate(requests):
        join(queue, name, since_s=float(number))
    return queue


def join(
    queue: FairQueue, name: str, *, num_tokens: int = 100, since_s: float = 0.0, priority: int = 0
) -> None:
    queue.join(name, tenant=name[0], num_tokens=num_tokens, since_s=since_s, priority=priority)


def give(queue: FairQueue, num_places: float = math.inf, without: Sequence[str] = ()) -> list[str]:
    """Take so many in one turn, passing over those that do not fit; returns them in order."""
    taken: list[str] = []
    for name in queue.dispatch():
        if name not in without and len(taken) < num_places:
            queue.take(name)
            taken.append(name)
        queue.check_invariants()
    return taken


def test_one_tenants_requests_come_in_order() -> None:
    queue = make_queue("a1", "a2", "a3")
    assert give(queue) == ["a1", "a2", "a3"]
    assert (len(queue), queue.num_tokens) == (0, 0)


def test_tenants_take_turns_however_many_one_has() -> None:
    queue = make_queue("a1", "a2", "a3", "a4", "b1", "c1", "b2")
    assert give(queue) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_who_comes_later_waits_for_nobodys_backlog() -> None:
    queue = make_queue(*(f"a{number}" for number in range(50)))
    assert give(queue, 20) == [f"a{number}" for number in range(20)]
    join(queue, "b1", since_s=60.0)
    assert give(queue, 3) == ["b1", "a20", "a21"]


def test_tokens_are_shared_and_not_requests() -> None:
    queue = FairQueue(10.0)
    for number in range(4):
        join(queue, f"a{number}", num_tokens=300)
    for number in range(12):
        join(queue, f"b{number}", num_tokens=100)
    taken = give(queue, 8)
    assert sum(300 for name in taken if name[0] == "a") == sum(100 for name in taken if name[0] == "b") == 600


def test_who_was_idle_has_saved_nothing_up() -> None:
    queue = make_queue("a1", "a2", "a3", "a4", "a5")
    give(queue, 3)
    join(queue, "b1")
    join(queue, "b2")
    assert give(queue) == ["b1", "a4", "b2", "a5"]


def test_lower_priorities_come_first_among_a_tenants_requests_only() -> None:
    queue = FairQueue(10.0)
    join(queue, "a1", priority=5)
    join(queue, "a2", priority=-5, since_s=1.0)
    join(queue, "b1", priority=9, since_s=2.0)
    assert give(queue) == ["a2", "b1", "a1"]


def test_waiting_is_worth_a_step_of_priority_every_so_often() -> None:
    queue = FairQueue(aging_s=10.0)
    join(queue, "a-old", priority=3, since_s=0.0)
    join(queue, "a-early", priority=0, since_s=29.0)
    join(queue, "a-late", priority=0, since_s=31.0)
    assert give(queue) == ["a-early", "a-old", "a-late"]


def test_small_ones_pass_one_that_has_no_room_but_not_forever() -> None:
    queue = make_queue("a-large", *(f"a{number}" for number in range(200)))
    num_taken = 0
    while not queue.is_overdue("a-large"):
        num_taken += len(give(queue, 5, without=["a-large"]))
    assert MAX_PASSED <= num_taken <= MAX_PASSED + 5
    assert give(queue, 2) == ["a-large", f"a{num_taken}"]


def test_one_that_is_overdue_is_tried_behind_any_number_of_smaller_ones() -> None:
    queue = make_queue(*(f"a{number}" for number in range(200)))
    queue.join("large", tenant="a", num_tokens=900, priority=-9, since_s=0.0)
    while not queue.is_overdue("large"):
        give(queue, 5, without=["large"])
    for number in range(MAX_MISSES):
        queue.join(f"first{number}", tenant="a", num_tokens=1, priority=-99, since_s=0.0)
    assert list(queue.dispatch()) == [*(f"first{number}" for number in range(MAX_MISSES)), "large"]


def test_a_turn_ends_after_so_many_without_room() -> None:
    queue = make_queue(*(f"a{number}" for number in range(100)))
    tried = list(queue.dispatch())
    assert tried == [f"a{number}" for number in range(MAX_MISSES)]


def test_large_ones_without_room_hide_no_smaller_one() -> None:
    queue = make_queue(*(f"a{number}" for number in range(3 * MAX_MISSES)))
    queue.join("small", tenant="a", num_tokens=1, since_s=99.0)
    assert list(queue.dispatch()) == [*(f"a{number}" for number in range(MAX_MISSES)), "small"]


def test_those_of_one_tenant_without_room_hide_no_larger_one_of_another() -> None:
    queue = make_queue(*(f"a{number}" for number in range(2 * MAX_MISSES)))
    for number in range(3):
        queue.join(f"large{number}", tenant="b", num_tokens=9000, since_s=0.0)
    small = [f"a{number}" for number in range(2 * MAX_MISSES)]
    assert give(queue, without=small) == ["large0", "large1", "large2"]


def test_any_number_of_one_tenant_without_room_hide_none_of_another() -> None:
    small = [f"a{number}" for number in range(3 * (MAX_MISSES + MAX_SKIPPED))]
    queue = make_queue(*small)
    join(queue, "b0", num_tokens=100 * len(small))
    queue.take("b0")
    for name in ("b1", "b2"):
        join(queue, name, num_tokens=900)
    assert give(queue, without=small) == ["b1", "b2"]


def test_a_turn_looks_past_so_many_large_ones() -> None:
    queue = make_queue(*(f"a{number}" for number in range(MAX_MISSES + MAX_SKIPPED + 1)))
    queue.join("small", tenant="a", num_tokens=1, since_s=999.0)
    assert "small" not in list(queue.dispatch())


def test_one_that_comes_back_is_not_charged_twice() -> None:
    queue = make_queue("a1", "a2", "b1")
    assert give(queue, 1) == ["a1"]
    queue.join("a1", tenant="a", num_tokens=0, since_s=0.0)
    assert give(queue) == ["b1", "a1", "a2"]


def test_the_last_one_of_the_longest_gives_way() -> None:
    queue = make_queue("a1", "a2", "a3", "b1", "b2")
    assert queue.last_of_longest() == "a3"
    queue.drop("a3")
    queue.drop("a1")
    assert queue.last_of_longest() == "b2"
    assert FairQueue(1.0).last_of_longest() is None


def test_what_is_ahead_is_counted_by_turns() -> None:
    queue = make_queue("a1", "a2", "a3", "b1", "b2")
    assert [queue.num_tokens_ahead(name) for name in ("a1", "b1", "a2", "b2", "a3")] == [
        0,
        100,
        200,
        300,
        400,
    ]
