"""Every backend keeps the same promises to one producer and one consumer in this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.worker_events import Pull
from baton_kv.connector import InvalidBlocksError, VerifiesBy
from tests.conformance.kv.pairs import (
    LARGE,
    MANY,
    PRODUCER,
    SMALL,
    Site,
    make_pull,
    open_site,
    run_pull,
    why_unreachable,
)

block_maps = st.dictionaries(st.integers(0, 15), st.integers(0, 15), max_size=16)


def test_a_pull_changes_exactly_the_named_blocks_to_the_holders_bytes(site: Site) -> None:
    producer, consumer = site.pair()
    held = producer.bytes.clone()

    @settings(max_examples=40, deadline=None)
    @given(block_map=block_maps)
    def check(block_map: dict[int, int]) -> None:
        consumer.bytes.view(torch.int64).random_(generator=site.rng)
        expected = consumer.bytes.clone()
        for local, remote in block_map.items():
            expected[local] = producer.bytes[remote]
        outcome = run_pull(consumer, make_pull(producer, block_map))
        assert (outcome.failed_block_ids, outcome.error) == ((), "")
        assert outcome.num_bytes == len(block_map) * SMALL.block_bytes
        assert torch.equal(consumer.bytes, expected)
        assert torch.equal(producer.bytes, held)

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
    producer, consumer = site.pair(LARGE)
    block_map = {local: 15 - local if local % 5 == 0 else local for local in range(15)}
    outcome = run_pull(consumer, make_pull(producer, block_map))
    assert outcome.error == ""
    assert all(
        torch.equal(consumer.bytes[local], producer.bytes[remote]) for local, remote in block_map.items()
    )


@pytest.mark.parametrize(("spec", "block_map"), [(SMALL, {0: 5, 1: 6, 9: 0, 8: 6}), (LARGE, {0: 0, 5: 1})])
def test_blocks_arrive_in_the_layout_of_the_puller(
    site: Site, spec: KVSpec, block_map: dict[int, int]
) -> None:
    """CPU kernels want V transposed inside each head; others keep the heads of a token together."""
    producer = site.worker(replace(spec, k_axes="THD", v_axes="HTD"))
    consumer = site.worker(replace(spec, k_axes="HTD", v_axes="HDT"))
    consumer.connector.connect(PRODUCER, producer.connector.describe())
    before = consumer.bytes.clone()
    assert run_pull(consumer, make_pull(producer, block_map)).error == ""
    item = {2: torch.int16, 4: torch.int32}[producer.pool.element_size()]
    num_layers, _, num_heads, num_tokens, head_dim = spec.block_shape
    held, pulled = (worker.pool.view(item) for worker in (producer, consumer))
    for local, remote in block_map.items():
        k = held[remote, :, 0].reshape(num_layers, num_tokens, num_heads, head_dim).transpose(1, 2)
        v = pulled[local, :, 1].reshape(num_layers, num_heads, head_dim, num_tokens).transpose(2, 3)
        assert torch.equal(pulled[local, :, 0], k)
        assert torch.equal(v, held[remote, :, 1])
    untouched = [block for block in range(16) if block not in block_map]
    assert torch.equal(consumer.bytes[untouched], before[untouched])


def test_a_changed_block_is_found_before_it_is_converted(site: Site) -> None:
    producer, consumer = site.worker(), site.worker(replace(SMALL, v_axes="HDT"))
    consumer.connector.connect(PRODUCER, producer.connector.describe())
    pull = make_pull(producer, {4: 1, 5: 2})
    producer.bytes[2, 0] ^= 1
    is_found = consumer.connector.capabilities.verifies_by is VerifiesBy.CHECKSUM
    assert run_pull(consumer, pull).failed_block_ids == ((5,) if is_found else ())


def test_what_the_holder_writes_is_seen_without_connecting_again(site: Site) -> None:
    producer, consumer = site.pair()
    producer.pool[3] = 2.5
    assert run_pull(consumer, make_pull(producer, {0: 3})).error == ""
    assert consumer.pool[0].eq(2.5).all()


def test_a_block_that_changed_after_its_checksum_is_named(site: Site) -> None:
    producer, consumer = site.pair()
    pull = make_pull(producer, {4: 1, 5: 2, 6: 3, 9: 0})
    producer.pool[2] = 1.0
    producer.pool[0] = 1.0
    outcome = run_pull(consumer, pull)
    if consumer.connector.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
        assert outcome.failed_block_ids == ()
    else:
        assert outcome.failed_block_ids == (5, 9)
        assert outcome.error == "checksum of 2 of 4 blocks does not match"


def test_a_block_without_a_checksum_is_valid_only_where_the_holder_confirms(site: Site) -> None:
    producer, consumer = site.pair()
    pull = make_pull(producer, {4: 1})
    outcome = run_pull(consumer, replace(pull, blocks=(replace(pull.blocks[0], checksum=None),)))
    is_confirmed = consumer.connector.capabilities.verifies_by is VerifiesBy.CONFIRMATION
    assert outcome.failed_block_ids == (() if is_confirmed else (4,))


def test_a_checksum_depends_on_every_byte_of_its_block(site: Site) -> None:
    producer = site.worker()
    before = producer.connector.compute_checksums([2, 3, 2])
    producer.bytes[2, -1] ^= 1
    after = producer.connector.compute_checksums([2, 3])
    assert before[0] == before[2]
    assert before[1] == after[1]
    if producer.connector.capabilities.verifies_by is VerifiesBy.CHECKSUM:
        assert before[0] != after[0]
    else:
        assert set(before + after) == {None}


@pytest.mark.parametrize("block_id", [-1, 16])
def test_a_checksum_outside_the_pool_is_refused(site: Site, block_id: int) -> None:
    with pytest.raises(InvalidBlocksError, match=f"block_id is {block_id}; allowed: 0 to 15"):
        site.worker().connector.compute_checksums([0, block_id])


def with_block(pull: Pull, **changes: int) -> Pull:
    """The pull with its last block changed."""
    return replace(pull, blocks=(*pull.blocks[:-1], replace(pull.blocks[-1], **changes)))


def with_source(pull: Pull, **changes: Any) -> Pull:
    """The pull with another source."""
    return replace(pull, source=replace(pull.source, **changes))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda pull: with_source(pull, epoch=1), "epoch is 1; allowed: 2, the one that is connected"),
        (lambda pull: with_source(pull, epoch=3), "epoch is 3; allowed: 2, the one that is connected"),
        (
            lambda pull: with_source(pull, worker_id="prefill-9"),
            "source is 'prefill-9'; allowed: one of ['prefill-0']",
        ),
        (lambda pull: with_block(pull, remote_block_id=12), "remote_block_id is 12; allowed: 0 to 11"),
        (lambda pull: with_block(pull, remote_block_id=-1), "remote_block_id is -1; allowed: 0 to 11"),
        (lambda pull: with_block(pull, local_block_id=16), "local_block_id is 16; allowed: 0 to 15"),
        (lambda pull: with_block(pull, local_block_id=-1), "local_block_id is -1; allowed: 0 to 15"),
        (
            lambda pull: with_block(pull, local_block_id=7),
            "local_block_id is [7, 7]; allowed: each block once",
        ),
    ],
)
def test_an_unsound_order_fails_before_a_byte_is_written(
    site: Site, spoil: Callable[[Pull], Pull], error: str
) -> None:
    producer, consumer = site.pair(epoch=2, num_blocks=12)
    before = consumer.bytes.clone()
    pull = spoil(make_pull(producer, {7: 1, 8: 2}, epoch=2))
    outcome = run_pull(consumer, pull)
    assert outcome.error == error
    assert outcome.failed_block_ids == tuple(block.local_block_id for block in pull.blocks)
    assert outcome.num_bytes == 0
    assert torch.equal(consumer.bytes, before)


def test_a_pull_id_in_flight_is_not_taken_twice(site: Site) -> None:
    producer, consumer = site.pair()
    pull = make_pull(producer, {7: 1})
    consumer.connector.pull(pull)
    with pytest.raises(ValueError, match="pull_id is 1"):
        consumer.connector.pull(pull)
    assert [outcome.error for outcome in consumer.collect(1)] == [""]


def test_each_of_several_pulls_ends_once(site: Site) -> None:
    producer, consumer = site.pair()
    for pull_id in (5, 3, 4):
        consumer.connector.pull(make_pull(producer, {pull_id: pull_id}, pull_id=pull_id))
    assert sorted(outcome.pull_id for outcome in consumer.collect(3)) == [3, 4, 5]
    for pull_id in (3, 4, 5):
        assert torch.equal(consumer.bytes[pull_id], producer.bytes[pull_id])


def test_a_description_outlives_its_holder_in_vain(site: Site) -> None:
    producer, consumer = site.worker(), site.worker()
    description = producer.connector.describe()
    producer.connector.close()
    assert re.search("address is|is gone", why_unreachable(consumer, description))


def test_a_pull_from_a_holder_that_closed_fails(site: Site) -> None:
    producer, consumer = site.pair()
    pull = make_pull(producer, {0: 1, 1: 2})
    before = consumer.bytes.clone()
    producer.connector.close()
    outcome = run_pull(consumer, pull)
    assert outcome.failed_block_ids == (0, 1)
    assert outcome.error.startswith("producer 'prefill-0' is gone")
    assert torch.equal(consumer.bytes[2:], before[2:])


def test_a_holder_that_closes_during_a_pull_fails_it(site: Site) -> None:
    producer, consumer = site.pair(LARGE, num_blocks=MANY)
    consumer.connector.pull(make_pull(producer, {local: local for local in range(MANY)}))
    consumer.run_until_written(0)
    producer.connector.close()
    (outcome,) = consumer.collect(1)
    assert outcome.failed_block_ids == tuple(range(MANY))
    assert outcome.error.startswith("producer 'prefill-0' is gone")


def test_an_abort_fences_a_running_pull(site: Site) -> None:
    """At once, or with the end of the pull."""
    producer, consumer = site.pair(LARGE)
    before = consumer.bytes.clone()
    consumer.connector.pull(make_pull(producer, {local: local for local in range(16)}))
    consumer.run_until_written(0)
    if not consumer.connector.abort(1).is_fenced:
        assert not consumer.connector.capabilities.has_safe_abort
        (outcome,) = consumer.collect(1)
        assert (outcome.error, outcome.failed_block_ids) == ("it was aborted", tuple(range(16)))
    else:
        assert torch.equal(consumer.bytes[8:], before[8:])
    after = consumer.bytes.clone()
    assert torch.equal(after[0], producer.bytes[0])
    producer.bytes.fill_(0)
    assert [consumer.poll() for _ in range(20)] == [[]] * 20
    assert torch.equal(consumer.bytes, after)


def test_an_abort_takes_a_waiting_pull_and_leaves_the_others(site: Site) -> None:
    producer, consumer = site.pair()
    before = consumer.bytes.clone()
    for pull_id in (1, 2, 3):
        consumer.connector.pull(make_pull(producer, {pull_id: 9}, pull_id=pull_id))
    assert consumer.connector.abort(2).is_fenced
    assert [outcome.pull_id for outcome in consumer.collect(2)] == [1, 3]
    assert torch.equal(consumer.bytes[2], before[2])


def test_an_abort_of_what_is_unknown_or_over_is_fenced(site: Site) -> None:
    producer, consumer = site.pair()
    assert consumer.connector.abort(1).is_fenced
    run_pull(consumer, make_pull(producer, {0: 0}))
    assert consumer.connector.abort(1).is_fenced
    consumer.connector.pull(make_pull(producer, {0: 0}, epoch=5))
    assert consumer.connector.abort(1).is_fenced
    assert consumer.poll() == []


def test_a_disconnect_fails_what_is_in_flight_from_that_peer_alone(site: Site) -> None:
    producer, consumer = site.pair(LARGE)
    other = site.worker(LARGE)
    consumer.connector.connect("prefill-1", other.connector.describe())
    consumer.connector.pull(make_pull(producer, {local: local for local in range(8)}))
    consumer.run_until_written(0)
    consumer.connector.pull(make_pull(other, {8: 8}, pull_id=2, source="prefill-1"))
    consumer.connector.disconnect(PRODUCER)
    failed, fine = consumer.collect(2)
    assert (failed.pull_id, failed.error) == (1, "peer 'prefill-0' was disconnected")
    assert (fine.pull_id, fine.error) == (2, "")
    consumer.connector.disconnect(PRODUCER)
    assert "source is 'prefill-0'" in str(run_pull(consumer, make_pull(producer, {0: 0})).error)


def test_a_restarted_holder_is_read_under_its_new_epoch_only(site: Site) -> None:
    old, consumer = site.pair(epoch=1)
    stale = make_pull(old, {0: 0}, epoch=1)
    old.connector.close()
    new = site.worker(epoch=2)
    consumer.connector.connect(PRODUCER, new.connector.describe())
    assert run_pull(consumer, stale).error == "epoch is 1; allowed: 2, the one that is connected"
    assert run_pull(consumer, make_pull(new, {0: 0}, epoch=2)).error == ""
    assert torch.equal(consumer.bytes[0], new.bytes[0])


def test_a_pull_in_flight_does_not_survive_a_reconnect(site: Site) -> None:
    old, consumer = site.pair(LARGE)
    consumer.connector.pull(make_pull(old, {local: local for local in range(8)}))
    consumer.run_until_written(0)
    new = site.worker(LARGE, epoch=2)
    consumer.connector.connect(PRODUCER, new.connector.describe())
    (outcome,) = consumer.collect(1)
    assert outcome.error == "peer 'prefill-0' was disconnected"


def test_a_pool_stays_usable_after_its_connector_closed(site: Site) -> None:
    worker = site.worker()
    worker.connector.close()
    worker.connector.close()
    worker.pool.fill_(3)
    assert worker.pool.eq(3).all()
