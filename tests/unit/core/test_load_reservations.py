"""The load ahead of a request counts own and others' reservations and the worker's report once each."""

from __future__ import annotations

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.load_reservation import LoadReservation
from baton_core.sessions.worker_info import Role, WorkerLoad, WorkerRates
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.fleet.token_queue import TokenQueue
from baton_router.core.placement.placement_snapshot import WorkerView
from tests.builders import make_worker_info
from tests.unit.core.routers import make_fleet


def seen(fleet: Fleet, worker_id: str = "w") -> WorkerView:
    return next(view for view in fleet.views(8, []) if view.worker_id == worker_id)


def test_what_was_given_counts_until_it_is_taken_back() -> None:
    queue = TokenQueue()
    queue.change(100)
    queue.change(50)
    assert queue.num_tokens == 150
    queue.change(-100)
    assert queue.num_tokens == 50


def test_a_report_counts_what_was_given_before_it_once_and_what_comes_later_besides() -> None:
    queue = TokenQueue()
    queue.change(1000)
    queue.report(400)
    assert queue.num_tokens == 400
    queue.change(300)
    assert queue.num_tokens == 700
    queue.change(-1000)
    assert queue.num_tokens == 300


def test_what_a_report_has_beyond_the_reservations_is_the_workers_own() -> None:
    queue = TokenQueue()
    queue.change(100)
    queue.report(160)
    assert queue.num_tokens == 160
    queue.change(-100)
    assert queue.num_tokens == 60
    queue.report(0)
    assert queue.num_tokens == 0


def test_what_other_routers_gave_counts_until_they_say_otherwise() -> None:
    fleet = make_fleet("w", "v")
    fleet.set_peer_load(
        "east",
        [LoadReservation("w", num_tokens=100, num_sequences=2, num_blocks=3), LoadReservation("new", 7)],
    )
    fleet.set_peer_load("west", [LoadReservation("w", num_tokens=10, num_sequences=1)])
    fleet.reserve(LoadReservation("w", num_tokens=1, num_sequences=1))
    assert (seen(fleet).num_queued_tokens, seen(fleet).num_sequences) == (111, 4)
    fleet.set_peer_load("east", [LoadReservation("w", num_tokens=20, num_sequences=1)])
    assert (seen(fleet).num_queued_tokens, seen(fleet).num_sequences) == (31, 3)
    fleet.set_peer_load("east", [])
    fleet.set_peer_load("west", [LoadReservation("v", num_sequences=5)])
    assert (seen(fleet).num_queued_tokens, seen(fleet).num_sequences) == (1, 1)
    assert seen(fleet, "v").num_sequences == 5
    fleet.join(make_worker_info("new"))
    assert seen(fleet, "new").num_queued_tokens == 0


def test_sequences_that_a_worker_reports_beyond_the_reservations_count_too() -> None:
    fleet = make_fleet("w")
    one, two = (fleet.reserve(LoadReservation("w", num_sequences=number)) for number in (1, 2))
    fleet.report(0.0, "w", WorkerLoad(num_running=16, num_waiting=60))
    assert seen(fleet).num_sequences == 76
    one.release()
    fleet.set_peer_load("east", [LoadReservation("w", num_sequences=5)])
    assert seen(fleet).num_sequences == 80
    fleet.report(0.5, "w", WorkerLoad(num_running=1))
    assert seen(fleet).num_sequences == 7, "the report came before what is on its way to the worker"
    two.release()
    fleet.set_peer_load("east", [])
    assert seen(fleet).num_sequences == 0


def test_prompts_of_a_worker_that_only_computes_prompts_are_no_sequences() -> None:
    fleet = make_fleet("w", role=Role.PREFILL)
    fleet.report(0.0, "w", WorkerLoad(num_running=3, num_waiting=4))
    assert seen(fleet).num_sequences == 0


def test_a_worker_that_joins_later_has_what_others_gave_it_before() -> None:
    fleet = make_fleet("w")
    fleet.set_peer_load("east", [LoadReservation("new", num_tokens=7)])
    fleet.join(make_worker_info("new"))
    assert seen(fleet, "new").num_queued_tokens == 7
    assert fleet.has_no_reservations


def test_blocks_that_others_send_there_take_room_too() -> None:
    fleet = make_fleet("w", num_blocks=10)
    fleet.set_peer_load("east", [LoadReservation("w", num_blocks=4)])
    assert not seen(fleet).can_reserve
    fleet.set_peer_load("east", [LoadReservation("w", num_blocks=3)])
    assert seen(fleet).can_reserve


def test_a_view_has_the_room_and_the_speed_that_the_worker_reports() -> None:
    fleet = make_fleet("w", "v")
    rates = WorkerRates(prefill_tokens_per_s=100.0, decode_step_s=0.5, pull_bytes_per_s=1e6)
    fleet.report(0.0, "w", WorkerLoad(num_available_blocks=7, rates=rates))
    assert (seen(fleet).num_free_blocks, seen(fleet).max_num_seqs) == (7, 16)
    assert seen(fleet).speed.prefill_tokens_per_s == seen(fleet, "v").speed.prefill_tokens_per_s == 100.0
    fleet.leave("w")
    assert seen(fleet, "v").speed.prefill_tokens_per_s != 100.0


def test_changes_may_come_before_the_worker_and_count_if_the_epoch_is_its_own() -> None:
    fleet = make_fleet("w")
    stored = CacheDelta(stored=(b"a",), number=1)
    assert fleet.apply_delta("early", stored, 1)
    assert fleet.apply_delta("stale", stored, 1)
    fleet.join(make_worker_info("early", epoch=1))
    fleet.join(make_worker_info("stale", epoch=2))
    views = {view.worker_id: view.num_cached_tokens for view in fleet.views(8, [b"a"])}
    assert views == {"w": 0, "early": 4, "stale": 0}
    assert not fleet.apply_delta("early", CacheDelta(number=3), 1)
