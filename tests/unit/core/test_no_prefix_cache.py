"""A worker whose prefix cache is off keeps no block, shares none and waits for none."""

from __future__ import annotations

import pytest

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.sessions.router_messages import Generate
from baton_core.worker.worker_events import FromRouter, RouterJoined, StepDone
from baton_worker.core.worker_config import WorkerConfig
from tests.builders import make_request, make_worker_config, step_result
from tests.unit.core.workers import ROUTER, Worker

PROMPT = 17
"""Four full blocks and a token."""


def run(config: WorkerConfig, *request_ids: str) -> list[list[int]]:
    """Let requests with one prompt run together to their only token; the sizes of the slices of each step."""
    worker = Worker(config)
    worker.feed(RouterJoined(router_id=ROUTER))
    for request_id in request_ids:
        spec = make_request(request_id, prompt=PROMPT, max_tokens=1)
        worker.feed(FromRouter(router_id=ROUTER, message=Generate(spec=spec)))
    steps = []
    while (plan := worker.core.schedule(0.0)) is not None:
        steps.append([piece.num_scheduled_tokens for piece in plan.slices])
        worker.feed(StepDone(result=step_result(plan)))
        worker.core.check_invariants()
    assert worker.core.num_requests == 0
    if not config.enable_prefix_caching:
        assert not any(message.stored for message in worker.heard(CacheDelta))
        assert len(worker.core.pool.cache) == 0
    return steps


@pytest.mark.parametrize("num_requests", [1, 2])
def test_prompts_that_begin_alike_are_computed_whole_and_side_by_side(num_requests: int) -> None:
    names = [f"r{number}" for number in range(num_requests)]
    without = make_worker_config(enable_prefix_caching=False)
    assert run(without, *names) == [[PROMPT] * num_requests]


def test_with_the_cache_the_second_waits_for_the_first() -> None:
    assert run(make_worker_config(), "a", "b") == [[PROMPT], [1]]
