"""A worker's adapters: who uses them, who waits, and which gives way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baton_core.blocks.block_hash import root_hash
from baton_core.errors import ErrorCode, InvalidRequestError
from baton_core.requests.adapter import Adapter
from baton_core.sessions.control_messages import ControlAction
from baton_core.sessions.router_messages import Failed, OutputSoFar, Refused, RequestSpec
from baton_core.worker.worker_events import AdapterLoaded, DropAdapter, LoadAdapter
from baton_worker.core.adapter_cache import PATIENCE_S, AdapterCache
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.worker_request import check_request
from tests.builders import make_request, make_worker_config
from tests.unit.core.workers import Worker, make_worker

A, B, C = (
    Adapter(name=name, digest=name * 64, path=f"/{name}", number=number)
    for number, name in enumerate("abc", 1)
)


def make_spec(request_id: str, adapter: Adapter | None) -> RequestSpec:
    return replace(make_request(request_id), adapter=adapter)


def begun(cache: AdapterCache, *pairs: tuple[str, Adapter], now: float = 0.0) -> list[Any]:
    for request_id, adapter in pairs:
        cache.begin(now, request_id, adapter)
    return cache.advance(now, frozenset())[0]


def test_requests_of_one_adapter_wait_for_one_load() -> None:
    cache = AdapterCache(2, 30.0)
    assert begun(cache, ("one", A), ("two", A)) == [LoadAdapter(adapter=A)]
    assert "one" in cache
    assert cache.end(AdapterLoaded(digest=A.digest, seconds=0.5)) == ("one", "two")
    assert "one" not in cache
    assert (cache.loaded, cache.loading, cache.load_s) == ((A.digest,), (), 0.5)
    assert begun(cache, ("three", A)) == []
    assert "three" not in cache
    cache.check_invariants(["one", "two", "three"])


def test_the_adapter_that_nobody_used_longest_gives_way_unless_a_step_has_it() -> None:
    cache = AdapterCache(2, 30.0)
    begun(cache, ("one", A), ("two", B))
    for adapter in (A, B):
        cache.end(AdapterLoaded(digest=adapter.digest))
    cache.drop("one")
    cache.begin(0.0, "three", C)
    assert cache.advance(0.0, {A.digest}) == ([], [])
    assert cache.advance(0.0, frozenset())[0] == [DropAdapter(digest=A.digest), LoadAdapter(adapter=C)]
    cache.check_invariants(["two", "three"])


def test_an_adapter_that_is_loading_for_nobody_goes_with_its_model_and_is_loaded_again() -> None:
    cache = AdapterCache(2, 30.0)
    begun(cache, ("one", A), ("two", B))
    cache.drop("one")
    assert cache.drop_idle() == [DropAdapter(digest=A.digest)]
    assert begun(cache, ("three", A)) == [LoadAdapter(adapter=A)]
    assert cache.end(AdapterLoaded(digest=A.digest)) == ()  # of the model that is given up
    assert ("three" in cache, cache.loaded) == (True, ())
    assert cache.end(AdapterLoaded(digest=A.digest)) == ("three",)
    assert cache.loaded == (A.digest,)
    cache.check_invariants(["two", "three"])


def test_nobody_passes_for_ever_whoever_waits_for_a_place() -> None:
    cache = AdapterCache(1, 30.0)
    begun(cache, ("one", A))
    cache.end(AdapterLoaded(digest=A.digest))
    assert begun(cache, ("two", B)) == []
    cache.begin(PATIENCE_S, "three", A)
    assert "three" not in cache
    cache.begin(PATIENCE_S + 1, "four", A)
    assert "four" in cache
    cache.drop("one")
    cache.drop("three")
    effects, ready = cache.advance(PATIENCE_S + 1, frozenset())
    assert (effects, ready) == ([DropAdapter(digest=A.digest), LoadAdapter(adapter=B)], [])
    cache.check_invariants(["two", "four"])


def test_a_load_that_takes_too_long_is_overdue_and_a_late_answer_finds_nobody() -> None:
    cache = AdapterCache(1, 30.0)
    begun(cache, ("one", A), now=1.0)
    assert cache.next_deadline() == 31.0
    assert [request_id for request_id, _ in cache.overdue(31.0)] == ["one"]
    cache.drop("one")
    assert cache.end(AdapterLoaded(digest=A.digest)) == ()
    cache.check_invariants([])


def test_a_request_is_computed_once_its_adapter_is_loaded_and_ends_if_it_cannot_be() -> None:
    worker = make_worker(max_cpu_loras=2)
    (load,) = [one for one in worker.generate(make_spec("r", A)) if isinstance(one, LoadAdapter)]
    assert load.adapter == A
    assert worker.core.schedule(0.0) is None
    worker.feed(AdapterLoaded(digest=A.digest))
    assert [piece.adapter for piece in worker.plan().slices] == [A.digest]
    worker.generate(make_spec("bad", B))
    worker.feed(AdapterLoaded(digest=B.digest, error="no such folder"))
    (failed,) = worker.heard(Failed)
    assert (failed.request_id, failed.code) == ("bad", ErrorCode.INVALID_REQUEST)
    worker.core.check_invariants()


def test_a_worker_without_adapters_refuses_them_by_name() -> None:
    config = make_worker_config()
    with pytest.raises(InvalidRequestError, match="lora_request is 'a'; allowed: None: enable_lora is False"):
        check_request(make_spec("r", A), config)


def test_at_most_max_loras_run_at_once_and_others_pass_whoever_waits() -> None:
    config = make_worker_config(max_cpu_loras=3, scheduler=SchedulerConfig(max_loras=1))
    worker = Worker(config)
    for name, adapter in (("one", A), ("two", B), ("three", None), ("four", A)):
        worker.generate(make_spec(name, adapter))
    for adapter in (A, B):
        worker.feed(AdapterLoaded(digest=adapter.digest))
    assert {piece.adapter for piece in worker.plan().slices} <= {"", A.digest}
    assert "b" in worker.core.scheduler.adapters(is_running=False)
    assert worker.core.scheduler.adapters(is_running=True) == {"a"}


def test_adapters_and_tenants_share_no_block() -> None:
    identity = make_worker_config().identity
    roots = {root_hash(identity, salt, digest) for salt in ("", "x") for digest in ("", A.digest, B.digest)}
    assert len(roots) == 6
    assert root_hash(identity, "", "") == root_hash(identity)


def test_a_pinned_adapter_gives_way_to_none_unless_all_are() -> None:
    cache = AdapterCache(2, 30.0)
    begun(cache, ("one", A), ("two", B))
    for adapter, request_id in ((A, "one"), (B, "two")):
        cache.end(AdapterLoaded(digest=adapter.digest))
        cache.drop(request_id)
    cache.pin(frozenset({1}))
    assert begun(cache, ("three", C)) == [DropAdapter(digest=B.digest), LoadAdapter(adapter=C)]
    cache.end(AdapterLoaded(digest=C.digest))
    cache.begin(0.0, "four", B)
    cache.pin(frozenset({1, 3}))
    assert cache.advance(0.0, frozenset())[0] == [DropAdapter(digest=A.digest), LoadAdapter(adapter=B)]
    with pytest.raises(InvalidRequestError, match="lora_request is 'b'; allowed: the adapters that"):
        cache.require_place(B)
    cache.require_place(A)
    with pytest.raises(InvalidRequestError, match="pinned adapters is 3; allowed: 2, as max_cpu_loras"):
        cache.pin(frozenset({1, 2, 3}))
    cache.pin(frozenset())
    cache.require_place(B)


def loaded(cache: AdapterCache, *pairs: tuple[str, Adapter]) -> list[Any]:
    """Load the adapters of requests, which end; returns what was to be done."""
    effects = begun(cache, *pairs)
    for request_id, adapter in pairs:
        cache.end(AdapterLoaded(digest=adapter.digest))
        cache.drop(request_id)
    return effects


def test_an_adapter_is_pinned_by_each_number_that_requests_name_it_by() -> None:
    cache = AdapterCache(2, 30.0)
    cache.pin(frozenset({7}))
    loaded(cache, ("served", replace(A, number=0)))
    loaded(cache, ("pinned", replace(A, number=7)))
    loaded(cache, ("two", B))
    assert loaded(cache, ("three", C)) == [DropAdapter(digest=B.digest), LoadAdapter(adapter=C)]


def test_a_number_keeps_the_latest_weights_alone() -> None:
    cache = AdapterCache(2, 30.0)
    cache.pin(frozenset({1, 2}))
    loaded(cache, ("one", A))
    loaded(cache, ("two", B))
    loaded(cache, ("one again", A))
    anew = replace(C, number=1)
    assert loaded(cache, ("anew", anew)) == [DropAdapter(digest=A.digest), LoadAdapter(adapter=anew)]


def test_a_request_that_has_begun_elsewhere_goes_on_where_others_are_pinned() -> None:
    worker = make_worker(max_cpu_loras=1)
    worker.ask(ControlAction.PIN_ADAPTERS, numbers=[1])
    so_far = (OutputSoFar(index=0, token_ids=(5,)),)
    worker.generate(make_spec("new", B))
    assert [refused.request_id for refused in worker.heard(Refused)] == ["new"]
    assert LoadAdapter(adapter=B) in worker.generate(replace(make_spec("resumed", B), resumed=so_far))
    worker.reserve(make_spec("handed over", B))
    assert len(worker.heard(Refused)) == 1
