"""Publisher and followers of KV events over real sockets."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
import zmq
from zmq.auth import create_certificates

from baton.kv_events.consumer import FollowerTimings, KVEventFollower
from baton_core.errors import InvalidConfigError
from baton_core.kv_events.event_stream import FollowedChange
from baton_kv.curve import CurveKeys, read_public_key
from baton_router.core.fleet.prefix_index import PrefixIndex
from baton_worker.kv_events.kv_events_config import KVEventsConfig
from baton_worker.kv_events.publisher import KVEventPublisher
from tests.integration.kv_event_producer import Producer, kv_events_config
from tests.integration.kv_event_subscriber import Subscriber

FAST = FollowerTimings(idle_s=0.05, answer_s=1.0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Producer]:
    worker = Producer(tmp_path)
    yield worker
    worker.publisher.close()


class Follower:
    """Our own consumer; what it has made one believe to be cached is in `hashes`."""

    def __init__(self, config: KVEventsConfig, server_key: bytes | None = None) -> None:
        consumer = KVEventFollower(
            config.endpoint, config.replay_endpoint, timings=FAST, server_key=server_key
        )
        self._changes = consumer.changes()
        self._runner = asyncio.Runner()
        self.seen: list[FollowedChange] = []
        self.hashes: set[bytes] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._changes.aclose())
        self._runner.close()

    def next(self, within_s: float = 30.0) -> FollowedChange:
        """Wait for the next change."""
        change = self._runner.run(asyncio.wait_for(anext(self._changes), within_s))
        last = self.seen[-1].delta.number if self.seen else 0
        self.seen.append(change)
        assert change.delta.is_snapshot or change.delta.number == last + 1
        if change.delta.is_snapshot:
            self.hashes.clear()
        self.hashes.difference_update(change.delta.removed)
        self.hashes.update(change.delta.stored)
        return change

    def until(self, hashes: set[bytes], epoch: int = 1) -> None:
        """Follow until exactly these are cached."""
        while self.hashes != hashes or not self.seen or self.seen[-1].epoch != epoch:
            self.next()


def test_a_subscriber_that_knows_only_the_wire_format_follows_and_replays(worker: Producer) -> None:
    with zmq.Context() as context:
        early = Subscriber(context, str(worker.config.endpoint), str(worker.config.replay_endpoint))
        early.catch_up()
        worker.work(20)
        early.follow(0.3)
        early.catch_up()
        assert early.hashes == worker.cached
        late = Subscriber(context, str(worker.config.endpoint), str(worker.config.replay_endpoint))
        late.catch_up()
        assert late.hashes == worker.cached
        assert late.num_replayed > 20
        worker.work(5, first=500)
        for one in (early, late):
            one.follow(0.3)
            one.catch_up()
            assert one.hashes == worker.cached
            assert one.epochs == [1]
        context.destroy(linger=0)


def test_encrypted_events_come_to_those_alone_who_know_the_key(tmp_path: Path) -> None:
    public, secret = create_certificates(tmp_path, "events")
    worker = Producer(tmp_path, curve_keyfile=secret)
    stranger = Follower(replace(worker.config, replay_endpoint=None), CurveKeys.make().public)
    with Follower(worker.config, read_public_key("--curve-server-key", public)) as follower:
        follower.next()
        worker.work(20)
        follower.until(worker.cached)
    for one in (stranger, Follower(replace(worker.config, replay_endpoint=None))):
        with one, pytest.raises(TimeoutError):
            one.next(within_s=0.3)
    worker.publisher.close()


@pytest.mark.parametrize("content", [None, "nothing", 'public-key = "short"', f'public-key = "{"a" * 40}"'])
def test_a_file_without_a_pair_of_keys_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "events.key_secret"
    if content is not None:
        file.write_text(content)
    said = f"curve_keyfile of kv_events_config is '{file}', which cannot be used ("
    with pytest.raises(InvalidConfigError, match=re.escape(said)):
        KVEventPublisher(kv_events_config(tmp_path, curve_keyfile=str(file)), 1)


def test_a_client_with_a_request_socket_gets_the_batch_that_it_asks_for(worker: Producer) -> None:
    worker.work(1)
    with zmq.Context() as context:
        client = context.socket(zmq.REQ)
        client.connect(str(worker.config.replay_endpoint))
        client.send((0).to_bytes(8, "big"))
        assert client.poll(5000)
        number, payload = client.recv_multipart()
        assert number == bytes(8)
        assert payload[0] == 0x93
        context.destroy(linger=0)


def test_our_consumer_follows_a_worker(worker: Producer) -> None:
    worker.work(3)
    with Follower(worker.config) as late:
        late.until(worker.cached)
        worker.work(10, first=300)
        late.until(worker.cached)
        assert [change.sequence for change in late.seen] == list(range(len(late.seen)))


def test_what_a_follower_is_told_makes_an_index(worker: Producer) -> None:
    worker.work(2)
    index = PrefixIndex()
    with Follower(worker.config) as follower:
        follower.until(worker.cached)
        for change in follower.seen:
            index.apply("w", change.delta)
    assert len(index) == len(worker.cached)


def test_a_batch_that_cannot_be_had_again_makes_a_follower_begin_anew(tmp_path: Path) -> None:
    worker = Producer(tmp_path, buffer_steps=4)
    worker.work(8)
    with Follower(worker.config) as early:
        while early.next().sequence < worker.last_sequence:
            pass  # so that all is published before another follower comes
    with Follower(worker.config) as follower:
        first = follower.next()
        assert first.delta.is_snapshot
        assert first.sequence > 4
    worker.publisher.close()


def test_a_follower_notices_that_the_worker_was_killed_and_started_again(tmp_path: Path) -> None:
    with Follower(kv_events_config(tmp_path)) as follower:
        for epoch, firsts in ((1, (1, 300)), (2, (500, 700))):
            with running(tmp_path, epoch) as process:
                for first in firsts:
                    follower.until(worked(process, first), epoch=epoch)
                process.kill()


@contextmanager
def running(folder: Path, epoch: int) -> Iterator[subprocess.Popen[str]]:
    """A producer in a process of its own."""
    command = [sys.executable, "-m", "tests.integration.kv_event_producer", str(folder), str(epoch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def worked(process: subprocess.Popen[str], first: int) -> set[bytes]:
    """Return the worker's cached blocks after it computed prompts that begin with the token `first`."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{first}\n")
    process.stdin.flush()
    return {bytes.fromhex(text) for text in process.stdout.readline().split()}


def test_subscribers_that_miss_batches_ask_for_them(tmp_path: Path) -> None:
    """Only so much waits for the one that does not read, and nobody waits for it."""
    worker = Producer(tmp_path, hwm=1)
    context = zmq.Context()
    deaf = context.socket(zmq.SUB)
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.setsockopt(zmq.SUBSCRIBE, b"")
    deaf.connect(worker.config.endpoint)
    with Follower(worker.config) as follower:
        for first in (1, 300, 600):
            worker.work(10, first=first)
            follower.until(worker.cached)
    context.destroy(linger=0)
    worker.publisher.close()


def test_without_a_replay_socket_a_follower_begins_with_what_it_hears(tmp_path: Path) -> None:
    worker = Producer(tmp_path)
    with Follower(replace(worker.config, replay_endpoint=None)) as follower:
        telling = threading.Event()
        teller = threading.Thread(target=lambda: _tell_until(worker, telling))
        teller.start()
        assert follower.next().delta.is_snapshot
        telling.set()
        teller.join()
    worker.publisher.close()


def _tell_until(worker: Producer, is_over: threading.Event) -> None:
    while not is_over.wait(0.01):
        worker.publisher.clear()


def test_a_full_queue_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publisher = KVEventPublisher(kv_events_config(tmp_path, max_queue_size=1, buffer_steps=1), 1)
    for _ in range(5_000):
        publisher.clear()
    publisher.close()
    assert "KV events are lost" in caplog.text


def test_an_endpoint_that_is_taken_is_refused_by_name(worker: Producer, tmp_path: Path) -> None:
    listener = zmq.Context()
    socket = listener.socket(zmq.PULL)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://*:{port}")
    with pytest.raises(
        InvalidConfigError, match=r"kv_events_config has endpoint: 'tcp://\*:\d+', which cannot be bound"
    ):
        KVEventPublisher(config, 1)
    listener.destroy(linger=0)
