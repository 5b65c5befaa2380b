"""How long requests wait for their first token, under a virtual clock on which every token has its cost."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from random import Random
from typing import Any

from baton_core.worker.sequence import Sequence
from baton_worker.core.scheduler import Scheduler
from tests.builders import make_sequence, step_result
from tests.unit.core.scheduling import make_scheduler

STEP_S = 0.002
TOKEN_S = 0.0001
BUDGET = 256
LONGEST_STEP_S = STEP_S + BUDGET * TOKEN_S


@dataclass
class Service:
    """Steps one after another; each costs time by its tokens. Requests come in while a step runs."""

    scheduler: Scheduler
    now: float = 0.0

    def run(self, arrivals: list[Sequence], *, num_outputs: int = 4) -> list[Sequence]:
        """Serve to the end; returns the sequences in the order of their first tokens."""
        coming = [(seq.arrival_s, number, seq) for number, seq in enumerate(arrivals)]
        heapq.heapify(coming)
        self.first_token_s: dict[str, float] = {}
        while coming or self.scheduler.num_waiting or self.scheduler.num_running:
            if not (self.scheduler.num_waiting or self.scheduler.num_running):
                self.now = max(self.now, coming[0][0])
            while coming and coming[0][0] <= self.now:
                self.scheduler.add(heapq.heappop(coming)[2])
            self._step(num_outputs)
        return sorted(arrivals, key=lambda seq: self.first_token_s[seq.seq_id.request_id])

    def waits(self, seqs: list[Sequence]) -> list[float]:
        return [self.first_token_s[seq.seq_id.request_id] - seq.arrival_s for seq in seqs]

    def _step(self, num_outputs: int) -> None:
        plan = self.scheduler.schedule(self.now)
        assert plan is not None, "there is work, but no plan"
        self.now += STEP_S + TOKEN_S * sum(piece.num_scheduled_tokens for piece in plan.slices)
        result = step_result(plan)
        for seq, number in self.scheduler.complete(self.now, result):
            seq.token_ids.extend(result.sampled[number])
            if result.sampled[number]:
                self.first_token_s.setdefault(seq.seq_id.request_id, self.now)
            if seq.num_output_tokens >= num_outputs:
                self.scheduler.remove(self.now, seq)


def one_long_among_many_short(priority: int = 0) -> tuple[Sequence, list[Sequence]]:
    """A prompt of 8,000 tokens, then for its whole duration one of 24 every 20 ms."""
    long = make_sequence("long", prompt=8000)
    short = [
        make_sequence(f"short-{n:03}", prompt=24, first=7 * n, arrival_s=0.001 + 0.02 * n, priority=priority)
        for n in range(60)
    ]
    return long, short


def serve(num_blocks: int = 4000, **limits: Any) -> Service:
    scheduler, _ = make_scheduler(num_blocks, budget=BUDGET, max_num_seqs=64, **limits)
    return Service(scheduler)


def test_without_limits_short_prompts_wait_for_the_long_one() -> None:
    service = serve()
    long, short = one_long_among_many_short()
    service.run([long, *short])
    assert max(service.waits(short)) > 0.8


def test_with_limits_no_short_prompt_waits_longer_than_two_steps() -> None:
    service = serve(long_prefill_token_threshold=128, max_num_partial_prefills=2)
    long, short = one_long_among_many_short()
    service.run([long, *short])
    assert max(service.waits(short)) < 2 * LONGEST_STEP_S
    assert service.waits([long])[0] < 2 * 8000 * (TOKEN_S + STEP_S / 128), "and the long one goes on"


def test_several_long_prompts_do_not_make_short_ones_wait_either() -> None:
    service = serve(
        num_blocks=12_000,
        long_prefill_token_threshold=64,
        max_num_partial_prefills=3,
        max_long_partial_prefills=2,
    )
    long, short = one_long_among_many_short()
    others = [make_sequence(f"long-{n}", prompt=6000, first=300 * n + 300) for n in range(3)]
    order = service.run([long, *others, *short])
    assert max(service.waits(short)) < 2 * LONGEST_STEP_S
    assert [seq.seq_id.request_id for seq in order if seq in (long, *others)][-1] == "long-2"


def test_equal_requests_get_their_first_tokens_in_the_order_in_which_they_came() -> None:
    rng = Random(3)
    seqs = [
        make_sequence(f"{rng.random()}", prompt=40, first=11 * n, arrival_s=0.003 * n + 0.002 * rng.random())
        for n in range(80)
    ]
    service = serve(num_blocks=400)
    assert service.run(seqs) == seqs


def test_nobody_of_equal_priority_overtakes() -> None:
    rng = Random(5)
    seqs = [
        make_sequence(
            f"{n:03}", prompt=40, first=11 * n, arrival_s=0.003 * n, priority=rng.choice([-1, 0, 0, 2])
        )
        for n in range(80)
    ]
    service = serve(num_blocks=400)
    order = service.run(seqs)
    for priority in (-1, 0, 2):
        names = [seq.seq_id.request_id for seq in order if seq.priority == priority]
        assert names == sorted(names)
    waits = {p: max(service.waits([seq for seq in seqs if seq.priority == p])) for p in (-1, 0, 2)}
    assert waits[-1] < waits[0] < waits[2]


def test_important_requests_do_not_wait_for_a_long_prompt_without_importance() -> None:
    service = serve()
    long, short = one_long_among_many_short(priority=-1)
    service.run([long, *short])
    assert max(service.waits(short)) < 2 * LONGEST_STEP_S
