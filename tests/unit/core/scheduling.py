"""Builders of schedulers, and steps whose engine is played by a test."""

from __future__ import annotations

from typing import Any

from baton_core.blocks.block_pool import BlockPool
from baton_core.kv_layout.paging import Paging
from baton_core.worker.sequence import Sequence
from baton_core.worker.step_plan import StepPlan
from baton_worker.core.scheduler import Scheduler
from baton_worker.core.scheduler_config import SchedulerConfig
from tests.builders import ONE_GROUP, step_result


def make_scheduler(
    num_blocks: int = 16,
    *,
    budget: int = 64,
    max_num_seqs: int = 8,
    paging: Paging = ONE_GROUP,
    num_stages: int = 1,
    **limits: Any,
) -> tuple[Scheduler, BlockPool]:
    pool = BlockPool(num_blocks)
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **limits)
    return Scheduler(pool, paging, config, num_stages=num_stages), pool


def plan_step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule(0.0)
    assert plan is not None
    return plan


def finish_step(scheduler: Scheduler, plan: StepPlan) -> None:
    """Complete a step; every sequence at its end goes on with token 500."""
    result = step_result(plan, 500)
    for seq, number in scheduler.complete(0.0, result):
        seq.token_ids.extend(result.sampled[number][:1])


def run_steps(scheduler: Scheduler, count: int) -> None:
    for _ in range(count):
        finish_step(scheduler, plan_step(scheduler))


def shape(plan: StepPlan) -> list[tuple[str, int, int]]:
    """(request, start, number of tokens) of each slice."""
    return [(piece.seq_id.request_id, piece.start, piece.num_scheduled_tokens) for piece in plan.slices]


def give_blocks(pool: BlockPool, seq: Sequence, num_blocks: int) -> None:
    """As an import leaves a sequence: its prompt is in its blocks, its first token is not."""
    seq.tables.fill(0, 0, pool.allocate(num_blocks) or [])
    seq.num_computed_tokens = seq.num_tokens
    seq.token_ids.append(500)


def add_siblings(scheduler: Scheduler, pool: BlockPool, leader: Sequence, num_blocks: int) -> None:
    """A prompt that came with its blocks, and a sibling of its sequence that shares them."""
    give_blocks(pool, leader, num_blocks)
    sibling = leader.fork(1)
    pool.share(sibling.tables.held())
    scheduler.add(leader)
    scheduler.add(sibling)
