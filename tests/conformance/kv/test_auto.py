"""The choice of a way to each peer: shared memory where its nonce can be read, TCP elsewhere."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator

import msgspec
import pytest
import torch

from baton_core.errors import IncompatibleWorkerError, InvalidConfigError
from baton_kv.auto import AutoConnector
from baton_kv.backends import CONNECTORS
from baton_kv.connector import KVConnector, ProducerUnreachableError
from baton_kv.row_copies import copy_rows
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.tcp import TcpConnector
from baton_kv.transport import Listen, Transport
from tests.conformance.kv.pairs import PRODUCER, SMALL, Site, Worker, make_pull, open_site, run_pull


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site("auto") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton_kv")


def pull_one(producer: Worker, consumer: Worker) -> None:
    """Pull a block and check it."""
    assert run_pull(consumer, make_pull(producer, {3: 7})).error == ""
    assert torch.equal(consumer.bytes[3], producer.bytes[7])


def spoiled(producer: Worker, transport: str, address: str) -> bytes:
    """The producer's description with another address for one transport."""
    description = msgspec.msgpack.decode(producer.connector.describe())
    for offer in description["offers"]:
        if offer["transport"] == transport:
            offer["address"] = address
    return msgspec.msgpack.encode(description)


def test_on_one_host_it_is_shared_memory(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    producer, consumer = site.pair()
    pull_one(producer, consumer)
    assert caplog.messages == [
        "KV blocks of worker prefill-0 come over shared_memory: the nonce in its shared memory can be read"
    ]


def test_where_the_nonce_cannot_be_read_it_is_tcp(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    producer, consumer = site.worker(), site.worker()
    consumer.connector.connect(PRODUCER, spoiled(producer, "shared_memory", "baton-kv-elsewhere"))
    pull_one(producer, consumer)
    (message,) = caplog.messages
    assert message.startswith(
        "KV blocks of worker prefill-0 come over tcp: the nonce in its shared memory cannot be read: "
        "address is 'baton-kv-elsewhere'; allowed: a live producer on this host"
    )


def test_another_user_gets_the_blocks_by_tcp(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, consumer = site.worker(), site.worker()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    consumer.connector.connect(PRODUCER, producer.connector.describe())
    monkeypatch.undo()
    assert isinstance(consumer.connector, AutoConnector)
    assert consumer.connector.transport_of(PRODUCER) == "tcp"
    pull_one(producer, consumer)


@pytest.mark.parametrize("kind", [SharedMemoryConnector, TcpConnector])
def test_peers_with_one_transport_can_be_pulled_from_and_pull(
    site: Site, kind: type[SharedMemoryConnector | TcpConnector]
) -> None:
    auto = site.worker()
    site.make = lambda spec, epoch: kind(spec, epoch)
    other = site.worker()
    auto.connector.connect(PRODUCER, other.connector.describe())
    assert isinstance(auto.connector, AutoConnector)
    assert auto.connector.transport_of(PRODUCER) == kind.capabilities.name
    pull_one(other, auto)
    other.connector.connect(PRODUCER, auto.connector.describe())
    pull_one(auto, other)


def test_peers_without_a_common_transport_are_refused(site: Site) -> None:
    site.make = lambda spec, epoch: SharedMemoryConnector(spec, epoch)
    producer = site.worker()
    site.make = lambda spec, epoch: TcpConnector(spec, epoch)
    with pytest.raises(IncompatibleWorkerError, match="is 'shared_memory'; allowed: 'tcp'"):
        site.worker().connector.connect(PRODUCER, producer.connector.describe())


def test_without_a_second_way_the_first_ones_error_stands(site: Site) -> None:
    consumer = site.worker()
    site.make = lambda spec, epoch: SharedMemoryConnector(spec, epoch)
    producer = site.worker()
    with pytest.raises(ProducerUnreachableError, match="address is 'nobody'"):
        consumer.connector.connect(PRODUCER, spoiled(producer, "shared_memory", "nobody"))


def test_where_tcp_cannot_listen_the_shared_pool_is_withdrawn(site: Site) -> None:
    files = set(os.listdir("/proc/self/fd"))
    connector = AutoConnector(SMALL, 1, Listen(host="192.0.2.1"))
    with pytest.raises(InvalidConfigError, match=r"'tcp://192.0.2.1:0', which cannot be bound"):
        connector.allocate(2)
    assert "kv-pool-listener" not in [thread.name for thread in threading.enumerate()]
    del connector
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= files


def test_a_peer_may_change_its_way(site: Site) -> None:
    producer, consumer = site.pair()
    consumer.connector.pull(make_pull(producer, {0: 1}))
    consumer.connector.connect(PRODUCER, spoiled(producer, "shared_memory", "nobody"))
    (outcome,) = consumer.collect(1)
    assert outcome.error == "peer 'prefill-0' was disconnected"
    pull_one(producer, consumer)
    consumer.connector.connect(PRODUCER, producer.connector.describe())
    pull_one(producer, consumer)


@pytest.mark.parametrize(
    ("transport", "kind"),
    [
        (Transport.AUTO, AutoConnector),
        (Transport.SHARED_MEMORY, SharedMemoryConnector),
        (Transport.TCP, TcpConnector),
    ],
)
def test_each_setting_makes_its_connector(transport: Transport, kind: type[KVConnector]) -> None:
    connector = CONNECTORS[transport](SMALL, 1, Listen(), copy_rows)
    connector.close()
    assert type(connector) is kind
    assert set(CONNECTORS) == set(Transport)
