"""Anything sent to the HTTP routes gets a documented answer in time, costs no block, and disturbs nobody.

A failing call is shown; the seed that Hypothesis names draws it, and those made beside it, again.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.e2e.documented import Documented
from tests.e2e.fuzzed_calls import Fuzz, HttpCall
from tests.e2e.hostile_client import send
from tests.e2e.processes import FLOAT32, KV_CACHE_BYTES, ONE_MIXED, SMALL, Cluster, serving
from tests.tiers import exhaustive

NUM_GROUPS: Final = int(os.environ.get("BATON_FUZZED_GROUPS", "48"))
"""With each set of flags; both together send over a thousand bodies."""
GROUP_SIZE: Final = 4
"""Calls that are made at once."""
WITHIN_S: Final = 30.0
SHORT: Final = (*FLOAT32, "--max-model-len", "128")
PLAIN: Final = (*SMALL, *SHORT)
"""A prefill and a decode worker, and nothing switched on."""
OPEN: Final = (
    *(*ONE_MIXED, *SHORT, "--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--max-logprobs", "-1"),
    *("--enable-operator-routes", "--trust-request-chat-template", "--enable-auto-tool-choice"),
    *("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--files-directory", "files"),
    "--enable-prompt-embeds",
)
"""One worker, and everything switched on."""
WITHOUT: Final = ("/sleep", "/pause")
"""While the workers sleep or requests are held, nobody can be served."""
NEIGHBOUR: Final = {
    "token_ids": [5, 6, 7] * 12,
    "sampling_params": {"max_tokens": 24, "seed": 3, "temperature": 1, "ignore_eos": True},
}

POST: Final = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
NO_HTTP: Final = (
    *(b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n"),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET /\0 HTTP/1.1\r\n\r\n"),
    *(b"GET /%00%zz HTTP/1.1\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\na: \0\r\n\r\n"),
    *(
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 50_000,
        b"GET /" + b"a" * 2**20,
        b"GET / HTTP/1.1\r\na:" + b"b" * 2**20,
    ),
    *(
        POST + b"Content-Length: " + length + b"\r\n\r\n{}"
        for length in (b"-5", b"9" * 30, b"2, 2", b"a", b"3")
    ),
    POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
    POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
)


def ask_neighbour(address: str) -> list[int]:
    content = json.dumps(NEIGHBOUR).encode()
    call = HttpCall(method="POST", path="", target="/inference/v1/generate", content=content)
    answer = send(address, call, WITHIN_S)
    assert answer is not None
    assert answer.status == 200, answer
    token_ids: list[int] = json.loads(answer.content)["choices"][0]["token_ids"]
    return token_ids


@contextmanager
def neighbour(address: str) -> Iterator[None]:
    """Ask the same again and again until the block is left: the tokens stay the same."""
    expected = ask_neighbour(address)
    is_over = threading.Event()

    def ask_on() -> int:
        num_asked = 0
        while not is_over.wait(0.05):
            assert ask_neighbour(address) == expected
            num_asked += 1
        return num_asked

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on)
        try:
            yield
        finally:
            is_over.set()
    assert asking.result() > 0
    assert ask_neighbour(address) == expected


class Attack:
    """Makes calls of one server, checks the answers and counts them."""

    def __init__(self, address: str) -> None:
        self.ends: Counter[int | str] = Counter()
        """Statuses, and how many clients hung up."""
        self.num_bodies = 0
        self._address = address
        self._documented = Documented(address, WITHIN_S)
        self._fuzz = Fuzz(self._documented.document, avoided=WITHOUT)

    def run(self, num_groups: int) -> None:
        """Make calls, `GROUP_SIZE` at once: the same ones each time."""
        with ThreadPoolExecutor(GROUP_SIZE) as pool:

            @settings(
                max_examples=num_groups,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(st.integers(0, 2**64))
            def call_at_once(seed: int) -> None:
                random = Random(seed)
                calls = [self._fuzz.draw(random) for _ in range(GROUP_SIZE)]
                self.num_bodies += sum(call.content is not None for call in calls)
                for end in pool.map(self._call, calls):
                    self.ends[end] += 1

            call_at_once()

    def _call(self, call: HttpCall) -> int | str:
        answer, began = None, time.monotonic()
        try:
            answer = send(self._address, call, WITHIN_S)
            assert time.monotonic() - began < WITHIN_S, "the answer comes late"
            if answer is not None:
                self._documented.check(call, answer)
        except Exception as error:
            error.add_note(f"{repr(call)[:3000]} got {repr(answer)[:1000]}")
            raise
        return "hung up" if answer is None else answer.status


@pytest.mark.parametrize("flags", [exhaustive(PLAIN), OPEN], ids=["plain", "open"])
def test_fuzzed_calls(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with serving(tmp_path / "cluster", *flags) as cluster:
        attack = Attack(cluster.http_address)
        with neighbour(cluster.http_address):
            attack.run(NUM_GROUPS)
        cluster.wait_until_idle()
        assert "Traceback" not in cluster.log.read_text()
    assert attack.num_bodies > 3 * NUM_GROUPS
    assert attack.ends[200] > attack.ends.total() // 16
    assert attack.ends[400] > attack.ends.total() // 3
    assert attack.ends["hung up"] > attack.ends.total() // 20


def test_what_is_no_http_is_refused_or_dropped(cluster: Cluster) -> None:
    host, _, port = cluster.http_address.rpartition(":")
    for content in NO_HTTP:
        with (
            socket.create_connection((host, int(port)), timeout=WITHIN_S) as connection,
            suppress(BrokenPipeError, ConnectionResetError),
        ):
            connection.sendall(content)
            with suppress(OSError):  # it is dropped already
                connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(2**16)
            assert not answer or re.match(rb"HTTP/1\.1 [234]\d\d ", answer), (content[:200], answer)
    ask_neighbour(cluster.http_address)
    cluster.wait_until_idle()
    assert "Traceback" not in cluster.log.read_text()
