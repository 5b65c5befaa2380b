"""What only NIXL does: other processes, with and without a one-sided way, and holders that go away."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_kv import nixl_library
from baton_kv.connector import AbortResult
from baton_kv.curve import CurveKeys
from baton_kv.nixl import NixlConnector
from baton_kv.nixl_agent import NixlAgent
from baton_kv.nixl_holder import FORGET_S, PoolServer
from baton_kv.nixl_link import NixlTimings
from baton_kv.nixl_messages import ReadingBegan, ReadingEnded, encode_notice
from baton_kv.transport import Listen
from tests.conformance.kv.holder_process import pattern
from tests.conformance.kv.pairs import (
    HOLDER,
    LARGE,
    MANY,
    SMALL,
    Site,
    Worker,
    make_order,
    needs_nixl,
    open_site,
    run_pull,
)
from tests.conformance.kv.processes import start_holder

TIMINGS = NixlTimings(silence_s=1.0, fence_s=0.3, fence_share=1.0)
ALL = {block_id: block_id for block_id in range(MANY)}


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site("nixl") as opened:
        opened.make = lambda spec, epoch: NixlConnector(spec, epoch, timings=TIMINGS)
        yield opened


def has_pattern(puller: Worker, epoch: int) -> bool:
    return all(torch.equal(puller.pool[block_id], pattern(epoch, block_id, LARGE)) for block_id in (0, 9, 31))


@needs_nixl
@pytest.mark.parametrize("ways", ["all", "tcp"])
def test_a_killed_holder_fails_its_orders_and_one_of_the_same_name_takes_its_place(
    site: Site, ways: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", ways)
    puller = site.worker(LARGE, num_blocks=MANY)
    with start_holder("nixl", size="large") as holder:
        puller.connector.connect(HOLDER, holder.description)
        assert run_pull(puller, holder.order(ALL)).error is None
        assert has_pattern(puller, 1)
        puller.connector.pull(holder.order(ALL))
        assert puller.poll() == []
        holder.kill()
        (outcome,) = puller.collect(1)
        assert outcome.failed == tuple(range(MANY))
        assert re.match(
            r"holder 'prefill-0' is gone \(NIXL_ERR_\w+\); waited for \d+ of 32", str(outcome.error)
        )
        assert "is gone" in str(run_pull(puller, holder.order(ALL, pull_id=2)).error)
    if ways == "tcp":
        replace_and_freeze(puller)


def replace_and_freeze(puller: Worker) -> None:
    """A holder that is frozen ends its orders after a while; those that are aborted are fenced earlier."""
    with start_holder("nixl", 2, size="large") as holder:
        puller.connector.connect(HOLDER, holder.description)
        assert run_pull(puller, holder.order(ALL)).error is None
        assert has_pattern(puller, 2)
        holder.freeze()
        frozen = run_pull(puller, holder.order({0: 1}))
        assert frozen.error == "holder 'prefill-0' has sent nothing for 1 s; waited for 1 of 1 blocks"
        puller.connector.pull(holder.order({0: 1, 1: 2}))
        assert puller.poll() == []
        assert puller.connector.abort(1) is AbortResult.QUARANTINED
        assert puller.connector.abort(1) is AbortResult.QUARANTINED
        started = time.monotonic()
        (aborted,) = puller.collect(1)
        assert time.monotonic() - started >= TIMINGS.fence_s - 0.1
        assert (aborted.error, aborted.failed) == ("it was aborted", (0, 1))


@needs_nixl
def test_a_fence_leaves_the_orders_that_were_not_aborted(site: Site) -> None:
    holder = site.worker(LARGE, num_blocks=MANY)
    connector = NixlConnector(LARGE, 1, timings=NixlTimings(fence_share=0.0))
    site.exits.callback(connector.close)
    puller = Worker(connector, connector.allocate(MANY), site.workers)
    site.workers.append(puller)
    connector.connect(HOLDER, holder.connector.describe())
    connector.pull(make_order(holder, {local: local for local in range(8)}, pull_id=1))
    connector.pull(make_order(holder, {local: local for local in range(8, MANY)}, pull_id=2))
    assert puller.poll() == []
    connector.abort(1)
    assert {(outcome.pull_id, outcome.error) for outcome in puller.collect(2)} == {
        (1, "it was aborted"),
        (2, None),
    }
    assert torch.equal(puller.bytes[8:], holder.bytes[8:])


@needs_nixl
def test_what_pullers_say_may_come_late_and_twice() -> None:
    server = PoolServer(NixlAgent(nixl_library.load_nixl(), torch.zeros(64, dtype=torch.uint8)))
    began, ended, again = (encode_notice(one) for one in (ReadingBegan(1), ReadingEnded(1), ReadingBegan(2)))
    for messages, is_being_read in (
        ((ended, began), False),
        ((began, ended), False),
        ((again, ended, began), True),
        ((b"nonsense", again), True),
        ((encode_notice(ReadingEnded(2)), again), False),
    ):
        for message in messages:
            server.take(0.0, "decode-0", message)
        assert server.is_being_read is is_being_read
    server.take(1.0, "decode-1", began)
    server.advance(1.0)
    assert server.is_being_read
    server.advance(1.0 + FORGET_S)
    assert not server.is_being_read
    server.close()


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_library, "BUILDS", ("nixl_cu99",))
    nixl_library.load_nixl.cache_clear()
    with pytest.raises(InvalidConfigError, match=r"kv_transport is 'nixl', .*pip install 'baton\[nixl\]'"):
        NixlConnector(SMALL, 1)


def test_workers_that_encrypt_do_not_take_it() -> None:
    with pytest.raises(InvalidConfigError, match=r"'nixl', which does not encrypt; .*--no-peer-encryption"):
        NixlConnector(SMALL, 1, Listen(curve=CurveKeys.make()))
