"""Placement as a table: which workers a prompt gets, and why none."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.placement import Placement, PlacementConfig, SplitMode, Unplaceable, WorkerView, place
from baton_core.worker_info import Role


def view(worker_id: str, **changes: Any) -> WorkerView:
    """A worker whose role is the first letter of its name: p, d, or m for mixed."""
    role = {"p": Role.PREFILL, "d": Role.DECODE, "m": Role.MIXED}[worker_id[0]]
    fields = {"num_cached_tokens": 0, "num_queued_tokens": 0, "num_sequences": 0, "can_reserve": True}
    return WorkerView(worker_id=worker_id, role=role, **{**fields, **changes})


def pair(outcome: Placement | Unplaceable) -> tuple[str, str]:
    assert isinstance(outcome, Placement), outcome
    assert outcome.reason
    return (outcome.prefill, outcome.decode)


def choose(
    *workers: WorkerView | str,
    prompt: int = 1000,
    split: SplitMode = SplitMode.AUTO,
    excluded: tuple[str, ...] = (),
) -> Placement | Unplaceable:
    views = [view(worker) if isinstance(worker, str) else worker for worker in workers]
    return place(prompt, views, PlacementConfig(split=split), frozenset(excluded))


# --- whether to split ---


@pytest.mark.parametrize(
    ("split", "prompt", "prefill"),
    [
        (SplitMode.AUTO, 255, "d"),
        (SplitMode.AUTO, 256, "p"),
        (SplitMode.ALWAYS, 1, "d"),
        (SplitMode.ALWAYS, 2, "p"),
        (SplitMode.NEVER, 100_000, "d"),
    ],
)
def test_the_mode_and_the_length_decide_whether_to_split(split: SplitMode, prompt: int, prefill: str) -> None:
    assert pair(choose("p", "d", prompt=prompt, split=split)) == (prefill, "d")


@pytest.mark.parametrize(
    ("num_cached", "split", "prefill"),
    [
        (744, SplitMode.AUTO, "p"),
        (745, SplitMode.AUTO, "d"),
        (998, SplitMode.ALWAYS, "p"),
        (999, SplitMode.ALWAYS, "d"),
        (1000, SplitMode.ALWAYS, "d"),
    ],
)
def test_only_tokens_the_decode_worker_lacks_count(num_cached: int, split: SplitMode, prefill: str) -> None:
    outcome = choose("p", view("d", num_cached_tokens=num_cached), split=split)
    assert pair(outcome) == (prefill, "d")


def test_without_a_prefill_worker_auto_stays_on_the_decode_worker() -> None:
    outcome = choose("d", "d2")
    assert pair(outcome) == ("d", "d")
    assert isinstance(outcome, Placement)
    assert not outcome.is_split


def test_two_mixed_workers_split_between_them() -> None:
    assert pair(choose("m1", "m2")) == ("m2", "m1")


# --- which workers ---


@pytest.mark.parametrize(
    ("first", "second", "decode"),
    [
        ({"num_sequences": 3}, {"num_sequences": 2}, "d2"),
        ({"num_sequences": 2}, {"num_sequences": 2}, "d1"),
        ({"num_sequences": 0}, {"num_sequences": 9, "num_cached_tokens": 32}, "d2"),
        ({"num_queued_tokens": 9}, {}, "d1"),
    ],
)
def test_decode_goes_to_the_longest_prefix_then_the_fewest_sequences_then_by_name(
    first: dict[str, Any], second: dict[str, Any], decode: str
) -> None:
    outcome = choose("p", view("d2", **second), view("d1", **first))
    assert pair(outcome) == ("p", decode)


@pytest.mark.parametrize(
    ("first", "second", "prefill"),
    [
        ({"num_queued_tokens": 3}, {"num_queued_tokens": 2}, "p2"),
        ({}, {}, "p1"),
        ({}, {"num_queued_tokens": 99, "num_cached_tokens": 32}, "p2"),
        ({"num_sequences": 9}, {}, "p1"),
    ],
)
def test_prefill_goes_to_the_longest_prefix_then_the_shortest_queue_then_by_name(
    first: dict[str, Any], second: dict[str, Any], prefill: str
) -> None:
    outcome = choose("d", view("p2", **second), view("p1", **first))
    assert pair(outcome) == (prefill, "d")


def test_workers_with_one_preference_come_before_mixed_ones() -> None:
    assert pair(choose("m", "p", "d")) == ("p", "d")


def test_a_decode_worker_without_room_is_passed_over_only_for_a_split() -> None:
    full = view("d1", can_reserve=False)
    assert pair(choose("p", full, "d2")) == ("p", "d2")
    assert pair(choose("p", full, "d2", prompt=10)) == ("d1", "d1")


def test_a_mixed_worker_without_room_for_the_blocks_can_still_compute_them() -> None:
    assert pair(choose(view("m1", can_reserve=False), "m2")) == ("m1", "m2")


# --- who refused ---


def test_whoever_refused_is_not_asked_again() -> None:
    assert pair(choose("p1", "p2", "d1", "d2", excluded=("p1", "d1"))) == ("p2", "d2")


@pytest.mark.parametrize(
    ("workers", "options", "reason", "is_permanent"),
    [
        ((), {}, "no decode worker is registered", True),
        (("p",), {}, "no decode worker is registered", True),
        (("p", "d"), {"excluded": ("d",)}, "every decode worker is full", False),
        (("p", "d"), {"excluded": ("p",), "split": SplitMode.ALWAYS}, "every prefill worker is full", False),
        (("d", "d2"), {"split": SplitMode.ALWAYS}, "no prefill worker is registered", True),
        (("p", view("d", can_reserve=False)), {}, "no decode worker has room for the prompt", False),
    ],
)
def test_no_place_has_a_reason_and_says_whether_waiting_helps(
    workers: tuple[Any, ...], options: dict[str, Any], reason: str, is_permanent: bool
) -> None:
    assert choose(*workers, **options) == Unplaceable(reason=reason, is_permanent=is_permanent)
