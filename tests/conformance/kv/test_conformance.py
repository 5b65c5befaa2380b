"""What every backend promises, over one holder and one puller in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.errors import IncompatibleWorkerError, InvalidConfigError
from baton_kv.connector import (
    AbortResult,
    HolderUnreachableError,
    InvalidBlocksError,
    PullOrder,
    VerifiesBy,
)
from tests.conformance.kv.pairs import BACKENDS, HOLDER, LARGE, SMALL, Site, make_order, open_site, run_pull

block_maps = st.dictionaries(st.integers(0, 15), st.integers(0, 15), max_size=16)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(block_map=block_maps)
def test_a_pull_changes_exactly_the_named_blocks_to_the_holders_bytes(
    backend: str, block_map: dict[int, int]
) -> None:
    with open_site(backend) as site:
        holder, puller = site.pair()
        expected = puller.bytes.clone()
        for local, remote in block_map.items():
            expected[local] = holder.bytes[remote]
        held = holder.bytes.clone()
        outcome = run_pull(puller, make_order(holder, block_map))
        assert (outcome.failed, outcome.error) == ((), None)
        assert outcome.num_bytes == len(block_map) * SMALL.block_bytes
        assert torch.equal(puller.bytes, expected)
        assert torch.equal(holder.bytes, held)


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
    with pytest.raises(InvalidConfigError, match="num_blocks is 0"):
        connector.allocate(0)


def test_a_pull_over_several_steps_brings_every_byte(site: Site) -> None:
    holder, puller = site.pair(LARGE)
    block_map = {local: 15 - local if local % 5 == 0 else local for local in range(15)}
    outcome = run_pull(puller, make_order(holder, block_map))
    assert outcome.error is None
    assert all(torch.equal(puller.bytes[local], holder.bytes[remote]) for local, remote in block_map.items())


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
    assert [outcome.error for outcome in puller.connector.poll()] == [None]


def test_outcomes_come_in_the_order_of_the_pulls(site: Site) -> None:
    holder, puller = site.pair()
    for pull_id in (5, 3, 4):
        puller.connector.pull(make_order(holder, {pull_id: pull_id}, pull_id=pull_id))
    outcomes = [outcome.pull_id for _ in range(3) for outcome in puller.connector.poll()]
    assert outcomes == [5, 3, 4]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layout", "LKHTD:1x2x1x4x4:bfloat16"),
        ("transport", "carrier_pigeon"),
        ("version", 99),
        ("num_blocks", 0),
    ],
)
def test_a_pool_that_does_not_fit_is_refused_by_name(site: Site, field: str, value: object) -> None:
    holder, puller = site.worker(), site.worker()
    description = msgspec.msgpack.decode(holder.connector.describe())
    description[field] = value
    with pytest.raises(IncompatibleWorkerError, match=field):
        puller.connector.connect(HOLDER, msgspec.msgpack.encode(description))


def test_a_description_that_cannot_be_read_is_refused(site: Site) -> None:
    with pytest.raises(IncompatibleWorkerError, match="description"):
        site.worker().connector.connect(HOLDER, b"\xc1nonsense")


@pytest.mark.parametrize(
    ("field", "value"),
    [("realm", "another host"), ("address", "nobody"), ("num_blocks", 9), ("num_blocks", 10**12)],
)
def test_a_pool_that_is_not_where_it_is_said_to_be_is_unreachable(
    site: Site, field: str, value: object
) -> None:
    holder, puller = site.worker(), site.worker()
    description = msgspec.msgpack.decode(holder.connector.describe())
    description[field] = value
    with pytest.raises(HolderUnreachableError) as caught:
        puller.connector.connect(HOLDER, msgspec.msgpack.encode(description))
    assert caught.value.field == ("realm" if field == "realm" else "address")
    assert run_pull(puller, make_order(holder, {0: 0})).failed == (0,)


def test_a_description_outlives_its_holder_in_vain(site: Site) -> None:
    holder, puller = site.worker(), site.worker()
    description = holder.connector.describe()
    holder.connector.close()
    with pytest.raises(HolderUnreachableError, match="address"):
        puller.connector.connect(HOLDER, description)


def test_a_pull_from_a_holder_that_closed_fails(site: Site) -> None:
    holder, puller = site.pair()
    order = make_order(holder, {0: 1, 1: 2})
    before = puller.bytes.clone()
    holder.connector.close()
    outcome = run_pull(puller, order)
    assert outcome.failed == (0, 1)
    assert outcome.error == "holder 'prefill-0' is gone"
    assert torch.equal(puller.bytes, before)


def test_a_holder_that_closes_during_a_pull_fails_it(site: Site) -> None:
    holder, puller = site.pair(LARGE)
    puller.connector.pull(make_order(holder, {local: local for local in range(16)}))
    assert puller.connector.poll() == []
    holder.connector.close()
    (outcome,) = puller.connector.poll()
    assert outcome.failed == tuple(range(16))
    assert outcome.error == "holder 'prefill-0' is gone"


def test_an_abort_fences_a_running_pull(site: Site) -> None:
    holder, puller = site.pair(LARGE)
    before = puller.bytes.clone()
    puller.connector.pull(make_order(holder, {local: local for local in range(16)}))
    assert puller.connector.poll() == []
    assert puller.connector.capabilities.has_safe_abort
    assert puller.connector.abort(1) is AbortResult.FENCED
    after = puller.bytes.clone()
    assert torch.equal(after[0], holder.bytes[0])
    assert torch.equal(after[8:], before[8:])
    assert [puller.connector.poll() for _ in range(5)] == [[]] * 5
    assert torch.equal(puller.bytes, after)


def test_an_abort_takes_a_waiting_pull_and_leaves_the_others(site: Site) -> None:
    holder, puller = site.pair()
    before = puller.bytes.clone()
    for pull_id in (1, 2, 3):
        puller.connector.pull(make_order(holder, {pull_id: 9}, pull_id=pull_id))
    assert puller.connector.abort(2) is AbortResult.FENCED
    assert [outcome.pull_id for _ in range(3) for outcome in puller.connector.poll()] == [1, 3]
    assert torch.equal(puller.bytes[2], before[2])


def test_an_abort_of_what_is_unknown_or_over_is_fenced(site: Site) -> None:
    holder, puller = site.pair()
    assert puller.connector.abort(1) is AbortResult.FENCED
    run_pull(puller, make_order(holder, {0: 0}))
    assert puller.connector.abort(1) is AbortResult.FENCED
    puller.connector.pull(make_order(holder, {0: 0}, epoch=5))
    assert puller.connector.abort(1) is AbortResult.FENCED
    assert puller.connector.poll() == []


def test_a_disconnect_fails_what_is_in_flight_from_that_peer_alone(site: Site) -> None:
    holder, puller = site.pair(LARGE)
    other = site.worker(LARGE)
    puller.connector.connect("prefill-1", other.connector.describe())
    puller.connector.pull(make_order(holder, {local: local for local in range(8)}))
    puller.connector.pull(make_order(other, {8: 8}, pull_id=2, source="prefill-1"))
    assert puller.connector.poll() == []
    puller.connector.disconnect(HOLDER)
    failed, fine = puller.connector.poll()
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
    assert puller.connector.poll() == []
    new = site.worker(LARGE, epoch=2)
    puller.connector.connect(HOLDER, new.connector.describe())
    (outcome,) = puller.connector.poll()
    assert outcome.error == "peer 'prefill-0' was disconnected"


def test_a_pool_stays_usable_after_its_connector_closed(site: Site) -> None:
    worker = site.worker()
    worker.connector.close()
    worker.connector.close()
    worker.pool.fill_(3)
    assert worker.pool.eq(3).all()
