"""The scenario of a run, as values: a seed makes one, and shrinking makes a smaller one of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from random import Random
from typing import Final

from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_router.core.placement.placement_config import SplitMode
from baton_simulator.clock import NodeClock
from baton_simulator.hash_engine import ONE_KIND, VOCAB_SIZE, Windows, expected_tokens
from baton_simulator.network import Weather
from baton_simulator.topology import Topology, parse_topology
from baton_simulator.transports import BACKENDS, SHORT, USUAL, Backend, Timings

TOPOLOGIES: Final = ("1p1d", "1p2d", "2p1d", "2p2d", "1p1d1m", "2m", "2p2d2r", "1p1d1m2r")
TWO_KINDS: Final[Windows] = (None, 6, 13)
"""Windows shorter and longer than a block, no multiples of it."""
LONGEST: Final = 64
"""Tokens of a sequence that at least one worker of each role holds: more than any request has."""
_START_S: Final = 0.5
"""Until every worker has joined every router."""
_SPREAD_S: Final = 1.0
"""Requests come within this time from then on, faults within one and a half."""


class FaultKind(StrEnum):
    CRASH = "crash"
    """A process ends, and starts again after a while with a new epoch."""
    LEAVE = "leave"
    """A worker is told to end within a time; what it cannot finish goes on elsewhere."""
    FREEZE = "freeze"
    """A process stops for a while."""
    RANK = "rank"
    """A rank of a worker's group is lost: its steps do not end any more, and once this is noticed the group
    ends, and starts again with a new epoch."""
    SLOW = "slow"
    """A rank is slow for a while, and with it the steps of its group."""
    PARTITION = "partition"
    """Two nodes do not reach each other, or one not the other."""
    BREAK = "break"
    """The session's stream between two nodes breaks."""
    RESET = "reset"
    """The peer channel between two workers loses all that is on its way."""
    LOSS = "loss"
    """Datagrams are lost and repeated."""
    GARBLE = "garble"
    """Copies fail or arrive wrong."""
    DRIFT = "drift"
    """Clocks run at rates that differ by up to 1 %."""
    CANCEL = "cancel"
    """Clients leave."""


ALL_FAULTS: Final = frozenset(FaultKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong at one time."""

    kind: FaultKind
    at_s: float
    nodes: tuple[str, ...]
    """Names of the nodes that it hits: one, or two for the link between them."""
    duration_s: float = 0.0
    is_one_way: bool = False

    @property
    def end_s(self) -> float:
        return self.at_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A client's request, and when the client leaves."""

    spec: RequestSpec
    at_s: float
    router: str
    cancel_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The complete input of a run."""

    seed: int
    topology: Topology
    backend: Backend
    split: SplitMode
    weather: Weather
    garbled: float
    timings: Timings
    num_blocks: int
    longest: dict[str, int]
    """Tokens of a sequence that each worker holds."""
    windows: Windows
    ranks: dict[str, ParallelSizes]
    """Sizes of each worker, whose ranks have pools of their own; empty where each worker has one pool."""
    pull_delays_s: tuple[float, float]
    clocks: dict[str, NodeClock]
    requests: tuple[PlannedRequest, ...]
    faults: tuple[Fault, ...]


def make_scenario(
    seed: int, topology: str | None = None, kinds: Collection[FaultKind] = ALL_FAULTS
) -> Scenario:
    """The scenario of a seed.

    Raises:
        InvalidConfigError: the topology cannot be.
    """
    rng = Random(f"scenario {seed}")
    shape = parse_topology(topology or rng.choice(TOPOLOGIES))
    backend = BACKENDS[rng.choice(sorted(BACKENDS))]
    windows = TWO_KINDS if rng.random() < 0.2 else ONE_KIND
    loss, is_bad = rng.choice([0.0, 0.02, 0.1]), FaultKind.LOSS in kinds
    weather = Weather(
        loss=loss if is_bad else 0.0,
        repeat=rng.choice([0.0, 0.1]) if is_bad else 0.0,
        max_delay_s=rng.choice([0.002, 0.02, 0.1]),
        bandwidth=rng.choice([0.0, 200.0, 50.0]),
    )
    names = [*shape.routers, *(name for name, _ in shape.workers)]
    return Scenario(
        seed=seed,
        topology=shape,
        backend=backend,
        split=SplitMode.ALWAYS if shape.has_parts and rng.random() < 0.5 else SplitMode.AUTO,
        weather=weather,
        garbled=rng.choice([0.0, 0.03]) if FaultKind.GARBLE in kinds else 0.0,
        timings=rng.choice([USUAL, SHORT]),
        num_blocks=rng.choice([16, 24, 40]) + 12 * (len(windows) - 1),
        longest=_limits(Random(f"limits {seed}"), shape),
        windows=windows,
        ranks=_ranks(Random(f"ranks {seed}"), shape, can_be_pipelines=windows == ONE_KIND),
        pull_delays_s=(0.001, rng.choice([0.02, 0.1, 0.4])),
        clocks={name: _clock(rng, FaultKind.DRIFT in kinds) for name in names},
        requests=_with_stops(
            Random(f"stops {seed}"), _requests(rng, shape, FaultKind.CANCEL in kinds), windows
        ),
        faults=_faults(rng, shape, [kind for kind in _AT_A_TIME if kind in kinds]),
    )


_AT_A_TIME: Final = (
    FaultKind.CRASH,
    FaultKind.LEAVE,
    FaultKind.FREEZE,
    FaultKind.RANK,
    FaultKind.SLOW,
    FaultKind.PARTITION,
    FaultKind.BREAK,
    FaultKind.RESET,
)


def _ranks(rng: Random, shape: Topology, *, can_be_pipelines: bool) -> dict[str, ParallelSizes]:
    """Choose sizes in a third of the scenarios: fewer and more ranks than heads, with and without stages."""
    if rng.random() > 1 / 3:
        return {}
    stages = [1, 2] if can_be_pipelines else [1]
    return {
        name: ParallelSizes(tensor=rng.choice([1, 2, 4, 8]), pipeline=rng.choice(stages))
        for name, _ in shape.workers
    }


def _limits(rng: Random, shape: Topology) -> dict[str, int]:
    """In every other scenario some workers, never the first of a role, hold less than some requests have."""
    is_mixed = rng.random() < 0.5
    return {
        name: rng.choice([28, 40, LONGEST]) if is_mixed and name[1:] != "1" else LONGEST
        for name, _ in shape.workers
    }


def _clock(rng: Random, drifts: bool) -> NodeClock:
    rate, offset_s = rng.uniform(0.99, 1.01), rng.uniform(0.0, 1000.0)
    return NodeClock(rate=rate, offset_s=offset_s) if drifts else NodeClock()


def _requests(rng: Random, shape: Topology, some_leave: bool) -> tuple[PlannedRequest, ...]:
    """Requests at random moments, many with a prefix in common."""
    shared = tuple(rng.randrange(VOCAB_SIZE) for _ in range(24))
    planned = []
    for number in range(rng.randint(2, 6)):
        own = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 16)))
        prompt = shared[: rng.choice([0, 8, 13, 24])] + own
        params = SamplingParams(n=rng.choice([1, 1, 1, 3]), seed=number, max_tokens=rng.choice([1, 4, 9, 16]))
        at_s = _START_S + rng.uniform(0.0, _SPREAD_S)
        leaves = rng.random() < 0.15 and some_leave
        cancel_s = at_s + rng.uniform(0.0, 0.5)
        planned.append(
            PlannedRequest(
                spec=RequestSpec(request_id=f"q{number}", prompt_token_ids=prompt, params=params),
                at_s=at_s,
                router=rng.choice(shape.routers),
                cancel_s=cancel_s if leaves else None,
            )
        )
    return tuple(planned)


def _with_stops(
    rng: Random, requests: tuple[PlannedRequest, ...], windows: Windows
) -> tuple[PlannedRequest, ...]:
    """Let some end with a token that they generate before they have all, often with the first."""
    planned = []
    for request in requests:
        spec = request.spec
        if rng.random() < 0.4:
            place = rng.choice((1, rng.randint(1, spec.params.max_tokens or 1)))
            stop = expected_tokens(spec.prompt_token_ids, spec.params, 0, place, windows)[-1]
            params = replace(spec.params, stop_token_ids=(stop,))
            request = replace(request, spec=replace(spec, params=params))
        planned.append(request)
    return tuple(planned)


def _faults(rng: Random, shape: Topology, kinds: list[FaultKind]) -> tuple[Fault, ...]:
    workers = [name for name, _ in shape.workers]
    faults = []
    for _ in range(rng.randint(1, 3) if kinds else 0):
        kind = rng.choice(kinds)
        at_s = _START_S + rng.uniform(0.0, 1.5 * _SPREAD_S)
        one = rng.choice(workers) if rng.random() < 0.85 else rng.choice(shape.routers)
        others = [name for name in workers if name != one]
        make = partial(Fault, kind=kind, at_s=at_s)
        match kind:
            case FaultKind.CRASH:
                fault = make(nodes=(one,), duration_s=rng.choice([0.05, 0.3, 2.0]))
            case FaultKind.FREEZE:
                fault = make(nodes=(one,), duration_s=rng.choice([0.3, 1.2, 2.5]))
            case FaultKind.PARTITION:
                nodes = (one, rng.choice([*others, *(r for r in shape.routers if r != one)]))
                duration_s = rng.choice([0.3, 1.2, 2.5])
                fault = make(nodes=nodes, duration_s=duration_s, is_one_way=rng.random() < 0.4)
            case FaultKind.LEAVE:
                fault = make(nodes=(rng.choice(workers),), duration_s=1.2)
            case FaultKind.RANK | FaultKind.SLOW:
                duration_s = rng.choice([0.1, 0.4, 1.2])
                fault = make(nodes=(rng.choice(workers),), duration_s=duration_s)
            case FaultKind.BREAK:
                fault = make(nodes=(rng.choice(workers), rng.choice(shape.routers)))
            case _:
                fault = make(nodes=(rng.choice(workers), rng.choice(workers)))
        faults.append(fault)
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
