"""Makes a failing scenario small: drops faults and requests, and what makes the rest harder to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from baton_simulator.clock import NodeClock
from baton_simulator.network import Weather
from baton_simulator.scenario import Scenario


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The smallest scenario, as far as a greedy search finds it, that still fails, in whatever way.

    Args:
        scenario: one that fails.
    """
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(scenario):
            if fails(candidate):
                scenario, is_smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """One step each, the largest first."""
    for at in range(len(scenario.faults)):
        yield replace(scenario, faults=scenario.faults[:at] + scenario.faults[at + 1 :])
    if len(scenario.requests) > 3:
        half = len(scenario.requests) // 2
        yield replace(scenario, requests=scenario.requests[:half])
        yield replace(scenario, requests=scenario.requests[half:])
    for at in range(len(scenario.requests)):
        yield replace(scenario, requests=scenario.requests[:at] + scenario.requests[at + 1 :])
    calm = Weather(max_delay_s=scenario.weather.max_delay_s, bandwidth=scenario.weather.bandwidth)
    if scenario.weather != calm:
        yield replace(scenario, weather=calm)
    if scenario.ranks:
        yield replace(scenario, ranks={})
    if scenario.garbled:
        yield replace(scenario, garbled=0.0)
    exact = {name: NodeClock() for name in scenario.clocks}
    if scenario.clocks != exact:
        yield replace(scenario, clocks=exact)
    for at, request in enumerate(scenario.requests):
        if request.cancel_s is not None:
            stays = replace(request, cancel_s=None)
            yield replace(scenario, requests=(*scenario.requests[:at], stays, *scenario.requests[at + 1 :]))
