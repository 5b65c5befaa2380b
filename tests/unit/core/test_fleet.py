"""The router's workers: who may join, what they hold, and the reservations for what they were given."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from baton_core.blocks.block_hash import block_hashes, root_hash
from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.load_reservation import LoadReservation
from baton_core.model.model_description import ModelDescription
from baton_core.model.model_identity import PROTOCOL_VERSION, ModelIdentity
from baton_core.sessions.control_messages import ControlResult
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.served_model import ServedModel
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_router.core.admission.assignment import prompt_hashes
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.placement.placement import WorkerView
from tests.builders import BLOCK_SIZE, VOCAB_SIZE, make_identity, make_request, make_source, make_worker_info
from tests.unit.core.routers import make_fleet


def hashes(spec: RequestSpec) -> tuple[bytes, ...]:
    root = root_hash(make_identity(), spec.cache_salt)
    return tuple(block_hashes(root, spec.prompt_token_ids, BLOCK_SIZE))


def view(fleet: Fleet, spec: RequestSpec, worker_id: str = "w") -> WorkerView:
    assert fleet.identity is not None
    return next(
        view
        for view in fleet.views(len(spec.prompt_token_ids), prompt_hashes(spec, fleet.identity))
        if view.worker_id == worker_id
    )


@pytest.mark.parametrize(
    ("field", "value", "mine"),
    [
        ("weights", "other", "tiny"),
        ("dtype", "bfloat16", "float32"),
        ("kv_layout", "x", make_identity().kv_layout),
        ("block_size", 8, BLOCK_SIZE),
        ("kv_windows", (None, 8), (None,)),
        ("transport", "tcp", "memory"),
        ("protocol_version", PROTOCOL_VERSION + 1, PROTOCOL_VERSION),
        ("numerics", "avx2 threads-2", ""),
        ("kv_variant", "ab", ""),
        ("quantization", "int8", ""),
        ("structured_outputs_backend", "guidance", "auto"),
        ("logits_processors", ("a:b",), ()),
        ("logprobs_mode", "raw_logits", ""),
    ],
)
def test_a_worker_that_cannot_be_paired_is_refused_by_field(field: str, value: Any, mine: Any) -> None:
    fleet = make_fleet("a")
    stranger = make_worker_info("b", identity=make_identity(**{field: value}))
    with pytest.raises(IncompatibleWorkerError) as caught:
        fleet.join(stranger)
    assert str(caught.value).startswith(f"{field} is {value!r}; allowed: {mine!r}")
    assert len(fleet.workers()) == 1


def test_every_field_of_an_identity_is_compared() -> None:
    mine = make_identity()
    for one in dataclasses.fields(ModelIdentity):
        value = getattr(mine, one.name)
        other = ModelDescription(tokenizer="t") if one.name == "description" else (value or 1) * 2
        with pytest.raises(IncompatibleWorkerError):
            mine.require_compatible(replace(mine, **{one.name: other}))


def test_workers_with_room_for_sequences_of_other_lengths_join() -> None:
    fleet = make_fleet("a", max_model_len=4096)
    fleet.serve(ServedModel(description=make_identity().description, vocab_size=VOCAB_SIZE))
    fleet.join(make_worker_info("b", max_model_len=128))
    assert len(fleet.workers()) == 2


DESCRIPTION = ModelDescription(
    config=(("rope_theta", "10000"), ("vocab_size", "1000")), tokenizer="aa", eos_token_ids=(1, 2)
)


def describing(**changes: Any) -> WorkerInfo:
    info = {name: changes.pop(name) for name in ("vocab_size", "logits_processors") if name in changes}
    identity = make_identity(
        description=replace(DESCRIPTION, **changes), logits_processors=info.pop("logits_processors", ())
    )
    return make_worker_info("a", identity=identity, **info)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"config": (("rope_theta", "5"), ("vocab_size", "1000"))},
            "config.rope_theta is '5'; allowed: '10000'",
        ),
        ({"config": (("vocab_size", "1000"),)}, "config.rope_theta is not given; allowed: '10000'"),
        ({"config": (*DESCRIPTION.config, ("x", "1"))}, "config.x is '1'; allowed: not given"),
        ({"tokenizer": "bb"}, "tokenizer is 'bb'; allowed: 'aa'"),
        ({"eos_token_ids": (1,)}, "eos_token_ids is (1,); allowed: (1, 2)"),
        ({"vocab_size": 999}, "vocab_size is 999; allowed: 1000"),
    ],
)
def test_a_router_takes_no_worker_of_another_model_than_its_own(changes: dict[str, Any], error: str) -> None:
    fleet = Fleet()
    fleet.serve(ServedModel(description=DESCRIPTION, vocab_size=VOCAB_SIZE))
    with pytest.raises(IncompatibleWorkerError) as caught:
        fleet.join(describing(**changes))
    assert str(caught.value) == f"{error}, as in the router's model folder"
    fleet.join(describing())
    with pytest.raises(IncompatibleWorkerError):
        fleet.join(replace(describing(**changes), worker_id="b"))


def test_a_router_takes_workers_that_have_no_tokenizer() -> None:
    fleet = Fleet()
    fleet.serve(ServedModel(description=DESCRIPTION, vocab_size=VOCAB_SIZE))
    fleet.join(describing(tokenizer=""))


def test_a_router_with_a_tokenizer_of_another_folder_compares_all_but_that() -> None:
    served = ServedModel(description=DESCRIPTION, vocab_size=VOCAB_SIZE, has_chosen_tokenizer=True)
    fleet = Fleet()
    fleet.serve(served)
    with pytest.raises(IncompatibleWorkerError, match=r"config\.vocab_size is not given"):
        fleet.join(describing(tokenizer="bb", config=DESCRIPTION.config[:1]))
    fleet.join(describing(tokenizer="bb"))
    assert served.reads_otherwise(describing(tokenizer="bb"))
    assert not served.reads_otherwise(describing())


def test_workers_need_the_logits_processors_that_the_router_offers() -> None:
    fleet = Fleet()
    fleet.serve(ServedModel(description=DESCRIPTION, vocab_size=VOCAB_SIZE, logits_processors=("a:b",)))
    with pytest.raises(IncompatibleWorkerError, match=r"logits_processors is \('c:d',\); allowed: with a:b"):
        fleet.join(describing(logits_processors=("c:d",)))
    fleet.join(describing(logits_processors=("a:b", "c:d")))


def test_one_transport_in_common_with_each_member_is_enough() -> None:
    fleet = make_fleet()
    for worker_id, transport in (("a", "shared_memory+tcp"), ("b", "tcp"), ("c", "shared_memory+tcp")):
        fleet.join(make_worker_info(worker_id, identity=make_identity(transport=transport)))
    stranger = make_worker_info("d", identity=make_identity(transport="shared_memory"))
    with pytest.raises(IncompatibleWorkerError, match="transport is 'shared_memory'; allowed: 'tcp', as in"):
        fleet.join(stranger)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(IncompatibleWorkerError, match="worker_id is 'a'"):
        make_fleet("a", "a")


def test_when_all_have_left_any_model_may_join() -> None:
    fleet = make_fleet("a")
    fleet.leave("a")
    fleet.join(make_worker_info("b", identity=make_identity(weights="other")))
    assert fleet.identity == make_identity(weights="other")


@pytest.mark.parametrize(
    ("roles", "is_ready"),
    [
        ((), False),
        ((Role.PREFILL,), False),
        ((Role.DECODE,), False),
        ((Role.PREFILL, Role.DECODE), True),
        ((Role.MIXED,), True),
    ],
)
def test_a_fleet_is_ready_when_somebody_prefills_and_somebody_decodes(
    roles: tuple[Role, ...], is_ready: bool
) -> None:
    fleet = Fleet()
    for number, role in enumerate(roles):
        fleet.join(make_worker_info(f"w{number}", role))
    assert fleet.is_ready is is_ready


def test_a_fleet_is_not_ready_while_the_only_worker_of_a_kind_sleeps() -> None:
    fleet = Fleet()
    fleet.join(make_worker_info("p", Role.PREFILL))
    fleet.join(make_worker_info("d", Role.DECODE))
    fleet.report(0.0, "d", WorkerLoad(is_asleep=True))
    assert not fleet.is_ready
    assert [view.is_asleep for view in fleet.views(8, [])] == [False, True]
    fleet.update_status("d", ControlResult(control_id=1))
    fleet.update_status("unknown", ControlResult(control_id=1, is_asleep=True))
    assert fleet.is_ready


def test_what_a_worker_says_it_is_for_comes_before_what_it_registered_as() -> None:
    fleet = make_fleet("w", role=Role.DECODE)
    fleet.report(0.0, "w", WorkerLoad(role=Role.MIXED))
    assert (view(fleet, make_request()).role, fleet.is_ready) == (Role.MIXED, True)
    fleet.update_status("w", ControlResult(control_id=1, role=Role.PREFILL))
    assert (view(fleet, make_request()).role, fleet.is_ready) == (Role.PREFILL, False)
    fleet.update_status("w", ControlResult(control_id=2))
    assert view(fleet, make_request()).role is Role.PREFILL


def test_a_worker_that_drains_is_known_at_once() -> None:
    fleet = make_fleet("a", "b")
    fleet.update_status("a", ControlResult(control_id=1, is_draining=True))
    assert [view.is_draining for view in fleet.views(8, [])] == [True, False]
    fleet.report(0.0, "b", WorkerLoad(is_draining=True))
    assert not fleet.is_ready


def test_cached_tokens_count_whole_blocks_of_the_same_tenant() -> None:
    fleet = make_fleet("w")
    spec = make_request(prompt=11)
    fleet.apply_delta("w", CacheDelta(stored=hashes(spec)))
    assert view(fleet, spec).num_cached_tokens == 8
    assert view(fleet, make_request(prompt=11, cache_salt="other")).num_cached_tokens == 0


def test_a_worker_that_returns_has_an_empty_cache() -> None:
    fleet = make_fleet("w")
    spec = make_request(prompt=8)
    fleet.apply_delta("w", CacheDelta(stored=hashes(spec)))
    fleet.leave("w")
    fleet.apply_delta("w", CacheDelta(stored=hashes(spec)))
    fleet.join(make_worker_info("w", epoch=2))
    assert view(fleet, spec).num_cached_tokens == 0
    assert fleet.source("w") == make_source("w", epoch=2)


def test_reservations_count_what_is_given_and_taken_back() -> None:
    fleet = make_fleet("w")
    spec = make_request()
    reservations = (
        LoadReservation("w", num_tokens=8),
        LoadReservation("w", num_sequences=2),
        LoadReservation("w", num_blocks=2),
    )
    reserved = [fleet.reserve(reservation) for reservation in reservations]
    seen = view(fleet, spec)
    assert (seen.num_queued_tokens, seen.num_sequences, fleet.has_no_reservations) == (8, 2, False)
    for one in reserved:
        one.release()
    assert fleet.has_no_reservations


def test_a_worker_that_comes_again_under_its_name_is_owed_nothing() -> None:
    fleet = make_fleet("w")
    reserved = fleet.reserve(LoadReservation("w", num_tokens=8, num_sequences=2))
    fleet.leave("w")
    fleet.join(make_worker_info("w"))
    reserved.release()
    seen = view(fleet, make_request())
    assert (seen.num_queued_tokens, seen.num_sequences, fleet.has_no_reservations) == (0, 0, True)


@pytest.mark.parametrize(
    ("num_initial", "num_available", "can_reserve"),
    [(0, 2, True), (0, 1, False), (3, 10, True), (4, 10, False)],
)
def test_half_of_a_pool_may_be_reserved(num_initial: int, num_available: int, can_reserve: bool) -> None:
    fleet = make_fleet("w", num_blocks=10)
    fleet.report(0.0, "w", WorkerLoad(num_available_blocks=num_available))
    fleet.reserve(LoadReservation("w", num_blocks=num_initial))
    assert view(fleet, make_request(prompt=8)).can_reserve is can_reserve


def test_one_prompt_alone_may_take_more_than_half() -> None:
    fleet = make_fleet("w", num_blocks=10)
    assert view(fleet, make_request(prompt=36)).can_reserve


def test_blocks_of_groups_with_a_window_are_those_that_move() -> None:
    fleet = make_fleet("w", identity=make_identity(kv_windows=(None, 6)), num_blocks=10)
    assert fleet.num_blocks(20) == 5 + 2
    fleet.reserve(LoadReservation("w", num_blocks=1))
    assert [view(fleet, make_request(prompt=n)).can_reserve for n in (8, 16)] == [True, False]


def test_without_workers_there_are_no_views() -> None:
    assert Fleet().views(48, []) == []
