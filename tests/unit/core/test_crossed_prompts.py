"""Two workers that compute prompts for each other never wait for each other's blocks."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from baton_core.sessions.router_messages import Cancel, Prefill, Refused, Reserve, ToWorker
from baton_core.sessions.worker_info import Role
from baton_core.worker.worker_events import (
    FromConsumer,
    FromProducer,
    Pull,
    PullDone,
    SendToConsumer,
    SendToProducer,
    StepDone,
)
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.routing_policies import RoutingPolicy
from baton_router.core.router_events import SendToWorker, Submit, WorkerJoined
from tests.builders import make_request, make_source, make_worker_config, make_worker_info, step_result
from tests.unit.core.workers import Worker

NUM_BLOCKS = 16
ONE, TWO = make_request("one", prompt=40, first=1), make_request("two", prompt=40, first=200)
"""Prompts of 10 blocks."""
THREE = make_request("three", prompt=28, first=400)
"""A prompt of 7 blocks."""


class Mixed:
    """Two workers, `m` and `m2`, that deliver to each other at once."""

    def __init__(self) -> None:
        self.workers = {name: Worker(make_worker_config(name, num_blocks=NUM_BLOCKS)) for name in ("m", "m2")}

    def command(self, name: str, message: ToWorker) -> None:
        self._carry(name, self.workers[name].command(message))

    def run(self) -> None:
        """Let steps and deadlines pass for a minute."""
        for second in range(60):
            for name, worker in self.workers.items():
                self._carry(name, worker.wait(float(second)))
                while (plan := worker.core.schedule(float(second))) is not None:
                    self._carry(name, worker.feed(StepDone(result=step_result(plan)), now=float(second)))

    def refused(self) -> set[tuple[str, str]]:
        return {(name, one.request_id) for name, w in self.workers.items() for one in w.heard(Refused)}

    def _carry(self, name: str, effects: list[Any]) -> None:
        queue = [(name, effect) for effect in effects]
        while queue:
            name, effect = queue.pop(0)
            match effect:
                case SendToProducer(source=source, message=message):
                    to, event = source.worker_id, FromConsumer(peer_id=name.encode(), message=message)
                case SendToConsumer(peer_id=peer_id, message=answer):
                    to, event = peer_id.decode(), FromProducer(message=answer)
                case Pull(pull_id=pull_id):
                    to, event = name, PullDone(pull_id=pull_id)
                case _:
                    continue
            queue += [(to, one) for one in self.workers[to].feed(event)]


CROSSED = [
    ("m", Prefill(spec=ONE)),
    ("m2", Reserve(spec=ONE, source=make_source("m"))),
    ("m2", Prefill(spec=TWO)),
    ("m", Reserve(spec=TWO, source=make_source("m2"))),
]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_of_two_large_prompts_that_cross_one_is_refused_and_the_other_computed(
    order: tuple[int, ...],
) -> None:
    mixed = Mixed()
    for number in order:
        mixed.command(*CROSSED[number])
    refused = mixed.refused()
    assert refused
    for name, request_id in refused:  # as the router would
        other = {"m": "m2", "m2": "m"}[name]
        mixed.command(other, Cancel(request_id=request_id))
    mixed.run()
    left = {"one", "two"} - {request_id for _, request_id in refused}
    computed = {one.request_id for w in mixed.workers.values() for one in w.told if hasattr(one, "outputs")}
    assert left <= computed


def test_a_prompt_that_fits_beside_a_large_reservation_is_taken() -> None:
    mixed = Mixed()
    mixed.command("m2", Reserve(spec=ONE, source=make_source("m")))
    mixed.command("m2", Prefill(spec=make_request("small", prompt=20, first=600)))
    mixed.command("m2", Prefill(spec=THREE))
    assert mixed.refused() == {("m2", "three")}


def test_a_prompt_that_half_of_the_blocks_hold_waits_for_no_other_worker() -> None:
    mixed = Mixed()
    mixed.command("m", Prefill(spec=ONE))
    mixed.command("m", Reserve(spec=THREE, source=make_source("m2")))
    mixed.command("m2", Prefill(spec=THREE))
    mixed.command("m2", Reserve(spec=make_request("four", prompt=28, first=600), source=make_source("m")))
    mixed.command("m", Prefill(spec=make_request("four", prompt=28, first=600)))
    mixed.run()
    assert not mixed.refused()
    assert mixed.workers["m2"].core.pool.num_available >= NUM_BLOCKS - 7
    assert not any(worker.core.scheduler.num_running for worker in mixed.workers.values())


@pytest.mark.parametrize("split", [SplitMode.ALWAYS, SplitMode.AUTO])
@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_the_router_lets_no_two_large_prompts_cross(policy: RoutingPolicy, split: SplitMode) -> None:
    limits = FlowLimits(placement=PlacementConfig(split=split, policy=policy))
    router = RouterCore(RouterConfig(limits=limits))
    for name in ("m", "m2"):
        info = make_worker_info(name, Role.MIXED, num_blocks=NUM_BLOCKS, max_model_len=64)
        router.on_event(0.0, WorkerJoined(info=info))
    pairs: dict[str, tuple[str, str]] = {}
    for number in range(6):
        spec = make_request(f"r{number}", prompt=40, first=1 + 60 * number)
        sent = [
            effect
            for effect in router.on_event(0.0, Submit(spec=spec, timeout_s=60.0))
            if isinstance(effect, SendToWorker)
        ]
        computes = [effect.worker_id for effect in sent if isinstance(effect.message, Prefill)]
        decodes = [effect.worker_id for effect in sent if isinstance(effect.message, Reserve)]
        if computes:
            pairs[spec.request_id] = computes[0], decodes[0]
    assert pairs or split is SplitMode.AUTO
    assert len(set(pairs.values())) <= 1
