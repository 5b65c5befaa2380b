"""Check a simulated cluster and its outcomes when the requests are over."""

from __future__ import annotations

from collections.abc import Sequence

from baton_router.core.router_events import FinishRequest
from baton_simulator.cluster import Cluster
from baton_simulator.outcome import Outcome
from baton_simulator.verdict import require_clean
from tests.sim.records import check_records


def check_clean(cluster: Cluster) -> None:
    """No request, lease, transfer or block is left behind: free and cached blocks are the whole pool."""
    require_clean(cluster)
    check_records(cluster)


def check_finished(outcome: Outcome, expected: Sequence[list[int]]) -> FinishRequest:
    """The request finished once, with these tokens in its sequences; returns its end."""
    (end,) = outcome.ends
    assert isinstance(end, FinishRequest), end
    assert outcome.tokens == dict(enumerate(expected)), outcome.spec.request_id
    assert end.num_output_tokens == sum(map(len, expected))
    return end
