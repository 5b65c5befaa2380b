"""Findings of papers, asked of the simulator."""

from __future__ import annotations

from baton_router.core.placement.placement_config import SplitMode
from baton_simulator.capacity.trace_formats import TraceRequest
from bench.directions import LOOSE, Setup


def test_a_fleet_is_played_the_requests_that_were_read_once() -> None:
    requests = [
        TraceRequest(timestamp=500 * number, input_length=600, output_length=4, hash_ids=[1, 2 + number])
        for number in range(2)
    ]
    setup = Setup(requests=requests, mix="1P:1D", split=SplitMode.ALWAYS)
    assert [setup.run(LOOSE, speedup).num_requests for speedup in (1.0, 2.0)] == [2, 2]
