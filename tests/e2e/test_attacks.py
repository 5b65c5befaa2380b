"""The attacks of `bench.attack`, one by one: a neighbour's tokens stay, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Final

import pytest

from baton import LLM, CompletionOutput
from baton_service.router_access import RouterAccess
from bench.attack.attacker import ATTACKS
from bench.attack.targets import Attack, Target
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import FLOAT32, SMALL, Cluster, serving

NEIGHBOUR_KEY: Final = "neighbour"
TENANT_KEY: Final = "tenant"
KEYS: Final = ("--api-key", NEIGHBOUR_KEY, "--api-key", TENANT_KEY)
PROMPT: Final = draw_prompt(60, seed=5)
PARAMS: Final = greedy(48)
SHORT: Final = (
    *("junk", "rapid-resets", "grpc-calls", "half-closes", "hang-ups", "pipelining", "smuggling"),
    *("broken-json", "cancels", "deadlines", "leaving-readers"),
    *("own-upgrades", "own-half-closes", "workers-junk", "conflicts"),
)
"""Attacks of seconds; the others hold connections or compute for long, and have tests of their own."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A prefill and a decode worker behind a router with the keys of a neighbour and a tenant."""
    access = RouterAccess(key=NEIGHBOUR_KEY)
    with serving(tmp_path_factory.mktemp("guarded"), *SMALL, *FLOAT32, *KEYS, access=access) as running:
        yield running


@contextmanager
def neighbour(cluster: Cluster, expected: list[CompletionOutput]) -> Iterator[None]:
    """Ask the same again and again until the block is left: the answer stays the same."""
    is_over = threading.Event()

    def ask_on() -> None:
        while not is_over.is_set():
            outputs, _ = answer(cluster.stub.Generate(ask(PROMPT, PARAMS), timeout=60.0))
            assert outputs == expected

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on)
        try:
            yield
        finally:
            is_over.set()
        asking.result()


@pytest.mark.parametrize("attack", [one for one in ATTACKS if one.name in SHORT], ids=lambda one: one.name)
def test_an_attack_disturbs_nobody_and_leaves_nothing(attack: Attack, guarded: Cluster, llm: LLM) -> None:
    expected = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs
    target = Target(
        http_address=guarded.http_address,
        grpc_address=guarded.address,
        key=TENANT_KEY if attack.has_key else "",
        rng=Random(7),
    )
    with neighbour(guarded, list(expected)):
        outcome = asyncio.run(attack.attack(target))
    assert outcome.wrong == []
    assert outcome.ends.total() > 0
    assert "out of time" not in outcome.ends
    guarded.wait_until_idle()
    assert "Traceback" not in guarded.log.read_text()
