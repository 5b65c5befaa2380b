"""What every backend promises, over one holder and one puller in this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.blocks.kv_spec import KVGroup, KVSpec
from baton_core.errors import IncompatibleWorkerError, InvalidConfigError
from baton_kv.connector import (
    AbortResult,
    BlockCopy,
    HolderUnreachableError,
    InvalidBlocksError,
    PullOrder,
    VerifiesBy,
)
from tests.conformance.kv.pairs import (
    HOLDER,
    LARGE,
    MANY,
    SMALL,
    Site,
    Worker,
    make_order,
    open_site,
    run_pull,
)

block_maps = st.dictionaries(st.integers(0, 15), st.integers(0, 15), max_size=16)


def test_a_pull_changes_exactly_the_named_blocks_to_the_holders_bytes(site: Site) -> None:
    holder, puller = site.pair()
    held = holder.bytes.clone()

    @settings(max_examples=40, deadline=None)
    @given(block_map=block_maps)
    def check(block_map: dict[int, int]) -> None:
        puller.bytes.view(torch.int64).random_(generator=site.rng)
        expected = puller.bytes.clone()
        for local, remote in block_map.items():
            expected[local] = holder.bytes[remote]
        outcome = run_pull(puller, make_order(holder, block_map))
        assert (outcome.failed, outcome.error) == ((), None)
        assert outcome.num_bytes == len(block_map) * SMALL.block_bytes
        assert torch.equal(puller.bytes, expected)
        assert torch.equal(holder.bytes, held)

    check()


def test_the_pool_has_the_shape_and_type_of_its_spec_and_starts_zeroed(backend: str) -> None:
    with open_site(backend) as site:
        connector = site.make(SMALL, 1)
        site.exits.callback(connector.close)
        pool = connector.allocate(3)
        assert pool.shape == (3, 2, 2, 2, 4, 4)
        assert pool.dtype is torch.bfloat16
        assert pool.is_contiguous()
        assert not pool.any()


def test_a_pool_without_blocks_is_refused(site: Site) -> None:
    connector = site.make(SMALL, 1)
    site.exits.callback(connector.close)
    with pytest.raises(InvalidConfigError, match="num_blocks is 0"):
        connector.allocate(0)


def test_a_pull_over_several_steps_brings_every_byte(site: Site) -> None:
    holder, puller = site.pair(LARGE)
    block_map = {local: 15 - local if local % 5 == 0 else local for local in range(15)}
    outcome = run_pull(puller, make_order(holder, block_map))
    assert outcome.error is None
    assert all(torch.equal(puller.bytes[local], holder.bytes[remote]) for local, remote in block_map.items())


@pytest.mark.parametrize(("spec", "block_map"), [(SMALL, {0: 5, 1: 6, 9: 0, 8: 6}), (LARGE, {0: 0, 5: 1})])
def test_blocks_arrive_in_the_layout_of_the_puller(
    site: Site, spec: KVSpec, block_map: dict[int, int]
) -> None:
    """CPU kernels want V transposed inside each head; others keep the heads of a token together."""
    holder = site.worker(replace(spec, k_axes="THD", v_axes="HTD"))
    puller = site.worker(replace(spec, k_axes="HTD", v_axes="HDT"))
    puller.connector.connect(HOLDER, holder.connector.describe())
    before = puller.bytes.clone()
    assert run_pull(puller, make_order(holder, block_map)).error is None
    item = {2: torch.int16, 4: torch.int32}[holder.pool.element_size()]
    num_layers, _, num_heads, num_tokens, head_dim = spec.block_shape
    held, pulled = (worker.pool.view(item) for worker in (holder, puller))
    for local, remote in block_map.items():
        k = held[remote, :, 0].reshape(num_layers, num_tokens, num_heads, head_dim).transpose(1, 2)
        v = pulled[local, :, 1].reshape(num_layers, num_heads, head_dim, num_tokens).transpose(2, 3)
        assert torch.equal(pulled[local, :, 0], k)
        assert torch.equal(v, held[remote, :, 1])
    untouched = [block for block in range(16) if block not in block_map]
    assert torch.equal(puller.bytes[untouched], before[untouched])


def test_a_changed_block_is_found_before_it_is_converted(site: Site) -> None:
    holder, puller = site.worker(), site.worker(replace(SMALL, v_axes="HDT"))
    puller.connector.connect(HOLDER, holder.connector.describe())
    order = make_order(holder, {4: 1, 5: 2})
    holder.bytes[2, 0] ^= 1
    is_found = puller.connector.capabilities.verifies_by is VerifiesBy.CHECKSUM
    assert run_pull(puller, order).failed == ((5,) if is_found else ())


def test_what_the_holder_writes_is_seen_without_connecting_again(site: Site) -> None:
    holder, puller = site.pair()
    holder.pool[3] = 2.5
    assert run_pull(puller, make_order(holder, {0: 3})).error is None
    assert puller.pool[0].eq(2.5).all()


def test_a_block_that_changed_after_its_seal_is_named(site: Site) -> None:
    holder, puller = site.pair()
    order = make_order(holder, {4: 1, 5: 2, 6: 3, 9: 0})
    holder.pool[2] = 1.0
    holder.pool[0] = 1.0
    outcome = run_pull(puller, order)
    if puller.connector.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
        assert outcome.failed == ()
    else:
        assert outcome.failed == (5, 9)
        assert outcome.error == "checksum of 2 of 4 blocks does not match"


def test_a_block_without_a_checksum_is_valid_only_where_the_holder_confirms(site: Site) -> None:
    holder, puller = site.pair()
    order = make_order(holder, {4: 1})
    outcome = run_pull(puller, replace(order, copies=(replace(order.copies[0], checksum=None),)))
    is_confirmed = puller.connector.capabilities.verifies_by is VerifiesBy.CONFIRMATION
    assert outcome.failed == (() if is_confirmed else (4,))


def test_a_seal_depends_on_every_byte_of_its_block(site: Site) -> None:
    holder = site.worker()
    before = holder.connector.seal([2, 3, 2])
    holder.bytes[2, -1] ^= 1
    after = holder.connector.seal([2, 3])
    assert before[0] == before[2]
    assert before[1] == after[1]
    if holder.connector.capabilities.verifies_by is VerifiesBy.CHECKSUM:
        assert before[0] != after[0]
    else:
        assert set(before + after) == {None}


@pytest.mark.parametrize("block_id", [-1, 16])
def test_a_seal_outside_the_pool_is_refused(site: Site, block_id: int) -> None:
    with pytest.raises(InvalidBlocksError, match=f"block_id is {block_id}; allowed: 0 to 15"):
        site.worker().connector.seal([0, block_id])


def with_copy(order: PullOrder, **changes: int) -> PullOrder:
    """The order with its last copy changed."""
    return replace(order, copies=(*order.copies[:-1], replace(order.copies[-1], **changes)))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda order: replace(order, epoch=1), "epoch is 1; allowed: 2, the one that is connected"),
        (lambda order: replace(order, epoch=3), "epoch is 3; allowed: 2, the one that is connected"),
        (
            lambda order: replace(order, source="prefill-9"),
            "source is 'prefill-9'; allowed: one of ['prefill-0']",
        ),
        (lambda order: with_copy(order, remote_block_id=12), "remote_block_id is 12; allowed: 0 to 11"),
        (lambda order: with_copy(order, remote_block_id=-1), "remote_block_id is -1; allowed: 0 to 11"),
        (lambda order: with_copy(order, local_block_id=16), "local_block_id is 16; allowed: 0 to 15"),
        (lambda order: with_copy(order, local_block_id=-1), "local_block_id is -1; allowed: 0 to 15"),
        (
            lambda order: with_copy(order, local_block_id=7),
            "local_block_id is [7, 7]; allowed: each block once",
        ),
    ],
)
def test_an_unsound_order_fails_before_a_byte_is_written(
    site: Site, spoil: Callable[[PullOrder], PullOrder], error: str
) -> None:
    holder, puller = site.pair(epoch=2, num_blocks=12)
    before = puller.bytes.clone()
    order = spoil(make_order(holder, {7: 1, 8: 2}, epoch=2))
    outcome = run_pull(puller, order)
    assert outcome.error == error
    assert outcome.failed == tuple(copy.local_block_id for copy in order.copies)
    assert outcome.num_bytes == 0
    assert torch.equal(puller.bytes, before)


def test_a_pull_id_in_flight_is_not_taken_twice(site: Site) -> None:
    holder, puller = site.pair()
    order = make_order(holder, {7: 1})
    puller.connector.pull(order)
    with pytest.raises(ValueError, match="pull_id is 1"):
        puller.connector.pull(order)
    assert [outcome.error for outcome in puller.collect(1)] == [None]


def test_outcomes_come_in_the_order_of_the_pulls(site: Site) -> None:
    holder, puller = site.pair()
    for pull_id in (5, 3, 4):
        puller.connector.pull(make_order(holder, {pull_id: pull_id}, pull_id=pull_id))
    assert [outcome.pull_id for outcome in puller.collect(3)] == [5, 3, 4]


def changed(worker: Worker, **changes: object) -> bytes:
    """The description of a worker's pool, with other values."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(worker.connector.describe()) | changes)


def why_unreachable(puller: Worker, description: bytes) -> str:
    """What is said of a pool that cannot be reached: by its connect, or else by the first order."""
    order = PullOrder(
        pull_id=1, source=HOLDER, epoch=1, copies=(BlockCopy(remote_block_id=0, local_block_id=0),)
    )
    try:
        puller.connector.connect(HOLDER, description)
    except HolderUnreachableError as error:
        assert run_pull(puller, order).failed == (0,)
        return str(error)
    outcome = run_pull(puller, order)
    assert outcome.failed == (0,)
    return str(outcome.error)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layout", SMALL.layout.replace("2x2x2x4x4", "1x2x2x4x4")),
        ("k_axes", "HTT"),
        ("version", 99),
        ("num_blocks", 0),
    ],
)
def test_a_pool_that_does_not_fit_is_refused_by_name(site: Site, field: str, value: object) -> None:
    holder, puller = site.worker(), site.worker()
    with pytest.raises(IncompatibleWorkerError, match=field):
        puller.connector.connect(HOLDER, changed(holder, **{field: value}))


@pytest.mark.parametrize(
    "other",
    [
        replace(SMALL, dtype="float32"),
        replace(SMALL, block_size=8),
        replace(SMALL, num_kv_heads=4),
        replace(SMALL, groups=(KVGroup(layers=(0,)), KVGroup(layers=(1,)))),
    ],
)
def test_a_cache_of_another_kind_is_refused_with_both_layouts(site: Site, other: KVSpec) -> None:
    puller = site.worker()
    with pytest.raises(IncompatibleWorkerError) as caught:
        puller.connector.connect(HOLDER, site.worker(other).connector.describe())
    assert f"layout of the peer's pool is {other.layout!r}; allowed: {SMALL.layout!r}" in str(caught.value)


def test_a_pool_that_is_offered_another_way_is_refused(site: Site) -> None:
    holder, puller = site.worker(), site.worker()
    with pytest.raises(IncompatibleWorkerError, match="transport of the peer's pool is 'pigeon'; allowed:"):
        puller.connector.connect(HOLDER, changed(holder, offers=[{"transport": "pigeon", "address": "loft"}]))


def test_a_description_that_cannot_be_read_is_refused(site: Site) -> None:
    with pytest.raises(IncompatibleWorkerError, match="description"):
        site.worker().connector.connect(HOLDER, b"\xc1nonsense")


def test_a_pool_that_is_not_where_it_is_said_to_be_is_unreachable(site: Site) -> None:
    holder, puller = site.worker(), site.worker()
    offers = msgspec.msgpack.decode(holder.connector.describe())["offers"]
    nowhere = [offer | {"address": "nobody"} for offer in offers]
    assert "address is 'nobody'" in why_unreachable(puller, changed(holder, offers=nowhere))


def test_a_description_outlives_its_holder_in_vain(site: Site) -> None:
    holder, puller = site.worker(), site.worker()
    description = holder.connector.describe()
    holder.connector.close()
    assert re.search("address is|is gone", why_unreachable(puller, description))


def test_a_pull_from_a_holder_that_closed_fails(site: Site) -> None:
    holder, puller = site.pair()
    order = make_order(holder, {0: 1, 1: 2})
    before = puller.bytes.clone()
    holder.connector.close()
    outcome = run_pull(puller, order)
    assert outcome.failed == (0, 1)
    assert str(outcome.error).startswith("holder 'prefill-0' is gone")
    assert torch.equal(puller.bytes[2:], before[2:])


def test_a_holder_that_closes_during_a_pull_fails_it(site: Site) -> None:
    holder, puller = site.pair(LARGE, num_blocks=MANY)
    puller.connector.pull(make_order(holder, {local: local for local in range(MANY)}))
    puller.run_until_written(0)
    holder.connector.close()
    (outcome,) = puller.collect(1)
    assert outcome.failed == tuple(range(MANY))
    assert str(outcome.error).startswith("holder 'prefill-0' is gone")


def test_an_abort_fences_a_running_pull(site: Site) -> None:
    """At once, or with the outcome of the order."""
    holder, puller = site.pair(LARGE)
    before = puller.bytes.clone()
    puller.connector.pull(make_order(holder, {local: local for local in range(16)}))
    puller.run_until_written(0)
    if puller.connector.abort(1) is AbortResult.QUARANTINED:
        assert not puller.connector.capabilities.has_safe_abort
        (outcome,) = puller.collect(1)
        assert (outcome.error, outcome.failed) == ("it was aborted", tuple(range(16)))
    else:
        assert torch.equal(puller.bytes[8:], before[8:])
    after = puller.bytes.clone()
    assert torch.equal(after[0], holder.bytes[0])
    holder.bytes.fill_(0)
    assert [puller.poll() for _ in range(20)] == [[]] * 20
    assert torch.equal(puller.bytes, after)


def test_an_abort_takes_a_waiting_pull_and_leaves_the_others(site: Site) -> None:
    holder, puller = site.pair()
    before = puller.bytes.clone()
    for pull_id in (1, 2, 3):
        puller.connector.pull(make_order(holder, {pull_id: 9}, pull_id=pull_id))
    assert puller.connector.abort(2) is AbortResult.FENCED
    assert [outcome.pull_id for outcome in puller.collect(2)] == [1, 3]
    assert torch.equal(puller.bytes[2], before[2])


def test_an_abort_of_what_is_unknown_or_over_is_fenced(site: Site) -> None:
    holder, puller = site.pair()
    assert puller.connector.abort(1) is AbortResult.FENCED
    run_pull(puller, make_order(holder, {0: 0}))
    assert puller.connector.abort(1) is AbortResult.FENCED
    puller.connector.pull(make_order(holder, {0: 0}, epoch=5))
    assert puller.connector.abort(1) is AbortResult.FENCED
    assert puller.poll() == []


def test_a_disconnect_fails_what_is_in_flight_from_that_peer_alone(site: Site) -> None:
    holder, puller = site.pair(LARGE)
    other = site.worker(LARGE)
    puller.connector.connect("prefill-1", other.connector.describe())
    puller.connector.pull(make_order(holder, {local: local for local in range(8)}))
    puller.run_until_written(0)
    puller.connector.pull(make_order(other, {8: 8}, pull_id=2, source="prefill-1"))
    puller.connector.disconnect(HOLDER)
    failed, fine = puller.collect(2)
    assert (failed.pull_id, failed.error) == (1, "peer 'prefill-0' was disconnected")
    assert (fine.pull_id, fine.error) == (2, None)
    puller.connector.disconnect(HOLDER)
    assert "source is 'prefill-0'" in str(run_pull(puller, make_order(holder, {0: 0})).error)


def test_a_restarted_holder_is_read_under_its_new_epoch_only(site: Site) -> None:
    old, puller = site.pair(epoch=1)
    stale = make_order(old, {0: 0}, epoch=1)
    old.connector.close()
    new = site.worker(epoch=2)
    puller.connector.connect(HOLDER, new.connector.describe())
    assert run_pull(puller, stale).error == "epoch is 1; allowed: 2, the one that is connected"
    assert run_pull(puller, make_order(new, {0: 0}, epoch=2)).error is None
    assert torch.equal(puller.bytes[0], new.bytes[0])


def test_a_pull_in_flight_does_not_survive_a_reconnect(site: Site) -> None:
    old, puller = site.pair(LARGE)
    puller.connector.pull(make_order(old, {local: local for local in range(8)}))
    puller.run_until_written(0)
    new = site.worker(LARGE, epoch=2)
    puller.connector.connect(HOLDER, new.connector.describe())
    (outcome,) = puller.collect(1)
    assert outcome.error == "peer 'prefill-0' was disconnected"


def test_a_pool_stays_usable_after_its_connector_closed(site: Site) -> None:
    worker = site.worker()
    worker.connector.close()
    worker.connector.close()
    worker.pool.fill_(3)
    assert worker.pool.eq(3).all()
