"""Every backend refuses pools that do not fit, and names why."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_layout.kv_spec import KVGroup, KVSpec
from tests.conformance.kv.pairs import PRODUCER, SMALL, Site, Worker, why_unreachable


def changed(worker: Worker, **changes: object) -> bytes:
    """The description of a worker's pool, with other values."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(worker.connector.describe()) | changes)


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
    producer, consumer = site.worker(), site.worker()
    with pytest.raises(IncompatibleWorkerError, match=field):
        consumer.connector.connect(PRODUCER, changed(producer, **{field: value}))


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
    consumer = site.worker()
    with pytest.raises(IncompatibleWorkerError) as caught:
        consumer.connector.connect(PRODUCER, site.worker(other).connector.describe())
    assert f"layout of the peer's pool is {other.layout!r}; allowed: {SMALL.layout!r}" in str(caught.value)


def test_a_pool_that_is_offered_another_way_is_refused(site: Site) -> None:
    producer, consumer = site.worker(), site.worker()
    with pytest.raises(IncompatibleWorkerError, match="transport of the peer's pool is 'pigeon'; allowed:"):
        consumer.connector.connect(
            PRODUCER, changed(producer, offers=[{"transport": "pigeon", "address": "loft"}])
        )


def test_a_description_that_cannot_be_read_is_refused(site: Site) -> None:
    with pytest.raises(IncompatibleWorkerError, match="description"):
        site.worker().connector.connect(PRODUCER, b"\xc1nonsense")


def test_a_pool_that_is_not_where_it_is_said_to_be_is_unreachable(site: Site) -> None:
    producer, consumer = site.worker(), site.worker()
    offers = msgspec.msgpack.decode(producer.connector.describe())["offers"]
    nowhere = [offer | {"address": "nobody"} for offer in offers]
    assert "address is 'nobody'" in why_unreachable(consumer, changed(producer, offers=nowhere))
