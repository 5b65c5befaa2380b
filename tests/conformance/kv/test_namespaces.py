"""Two workers in network namespaces of their own, joined by one link: as far apart as two hosts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.conformance.kv.consumer_process import TIMINGS
from tests.conformance.kv.pairs import MANY
from tests.conformance.kv.processes import start_producer, start_python

PRODUCER_HOST: Final = "10.213.77.1"
CONSUMER_HOST: Final = "10.213.77.2"
RECOVERED_WITHIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Link:
    """Two namespaces with a virtual Ethernet link between them."""

    producer: str
    consumer: str

    def set(self, state: str) -> None:
        """Set the link `up` or `down`."""
        ip("-n", self.producer, "link", "set", "veth0", state)


def ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)


@pytest.fixture
def link() -> Iterator[Link]:
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed: no network namespaces")
    ends = Link(f"baton-producer-{os.getpid()}", f"baton-consumer-{os.getpid()}")
    with ExitStack() as exits:
        for namespace in (ends.producer, ends.consumer):
            try:
                ip("netns", "add", namespace)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
            exits.callback(ip, "netns", "del", namespace)
        ip(
            "-n",
            ends.producer,
            "link",
            "add",
            "veth0",
            "type",
            "veth",
            "peer",
            "veth0",
            "netns",
            ends.consumer,
        )
        for namespace, host in ((ends.producer, PRODUCER_HOST), (ends.consumer, CONSUMER_HOST)):
            ip("-n", namespace, "addr", "add", f"{host}/30", "dev", "veth0")
            for device in ("lo", "veth0"):
                ip("-n", namespace, "link", "set", device, "up")
        yield ends


def within(namespace: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", namespace)


class Consumer:
    """A consumer's process, and what it answers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def test_blocks_cross_a_network_and_a_lost_link_ends_the_order(link: Link) -> None:
    consumer_module = ("-m", "tests.conformance.kv.consumer_process")
    with (
        start_python(consumer_module, within=within(link.consumer)) as process,
        start_producer("auto", host=PRODUCER_HOST, size="large", within=within(link.producer)) as producer,
    ):
        consumer = Consumer(process)
        known = {"description": producer.description.hex(), "checksums": producer.checksums}
        assert consumer.ask(json.dumps(known)) == {"transport": "tcp"}
        complete = {"error": "", "failed": [], "is_right": True}
        assert consumer.ask("pull") == complete
        consumer.ask("begin")
        link.set("down")
        started = time.monotonic()
        lost = consumer.ask("finish")
        assert time.monotonic() - started < TIMINGS.silence_s + 20.0
        assert lost["failed"] == list(range(MANY))
        assert re.match(
            r"producer 'prefill-0' .*; waited for chunk [1-7] of 8 from tcp://10.213.77.1", lost["error"]
        )
        assert consumer.ask("pull")["failed"] == list(range(MANY))
        link.set("up")
        while consumer.ask("pull") != complete:  # until neighbours have found each other again
            assert time.monotonic() - started < RECOVERED_WITHIN_S
