"""A run told for people: what the scenario is, what happened, and what did not hold."""

from __future__ import annotations

from baton_simulator.scenario import Scenario
from baton_simulator.simulation import RunResult


def describe_run(result: RunResult) -> str:
    """The scenario in a few lines, every event on one, and the failure last."""
    return f"{_scene(result.scenario)}\n{result.log.text()}\n{result.failure or 'all held'}\n"


def _scene(scenario: Scenario) -> str:
    weather, pull = scenario.weather, scenario.timings.pull
    lines = [
        f"seed {scenario.seed}: {scenario.topology.text}, {scenario.num_blocks} blocks each, windows "
        f"{scenario.windows}, split {scenario.split}",
        f"blocks move by {scenario.backend.name}, {'with' if scenario.garbled else 'without'} wrong copies",
        f"lease {pull.lease_s:g} s, renewed every {pull.renew_s:g} s, pull within {pull.pull_deadline_s:g} s",
        f"datagrams: {weather.loss:.0%} lost, {weather.repeat:.0%} repeated; delays up to "
        f"{weather.max_delay_s:g} s",
    ]
    for request in scenario.requests:
        spec = request.spec
        leaves = "" if request.cancel_s is None else f", its client leaves at {request.cancel_s:.3f}"
        lines.append(
            f"{request.at_s:10.3f}  request {spec.request_id} to {request.router}: "
            f"{len(spec.prompt_token_ids)} prompt tokens, n {spec.params.n}, "
            f"max_tokens {spec.params.max_tokens}{leaves}"
        )
    for fault in scenario.faults:
        way = " one way" if fault.is_one_way else ""
        lasts = f" for {fault.duration_s:g} s" if fault.duration_s else ""
        lines.append(f"{fault.at_s:10.3f}  {fault.kind}{way} of {' and '.join(fault.nodes)}{lasts}")
    return "\n".join(lines) + "\n"
