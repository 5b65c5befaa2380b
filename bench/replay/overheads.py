"""Time that real services take besides a step's timer, measured with streams that come one by one."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import msgspec

from baton_bench.token_source import FIRST_TOKEN
from baton_simulator.capacity.step_timing import StepTiming
from bench.replay.cluster import Cluster, write_load
from bench.replay.loads import VOCAB_SIZE, Arrival, Load

NUM_STREAMS = 8
EVERY_S = 1.0
PROMPT_TOKENS = 64
NUM_TOKENS = 64
NUM_MESSAGES = 4
"""From a client to its first token: to the router, to the worker, and back."""
WITHIN_S = 60.0


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds in addition to timers."""

    step_s: float = 0.0
    """Each step of a worker."""
    message_s: float = 0.0005
    """A message between two processes, with what they do about it."""

    def __str__(self) -> str:
        return f"{self.step_s * 1e3:.2f} ms a step beside the timer, {self.message_s * 1e3:.2f} ms a message"


def measure_overheads(cluster: Cluster, setting: str, timing: StepTiming, folder: Path) -> Overheads:
    """Measure them with the router of a setting, while nothing else is sent."""
    draws = random.Random("streams")
    arrivals = [
        Arrival(
            at_s=number * EVERY_S,
            token_ids=draws.choices(range(FIRST_TOKEN, VOCAB_SIZE), k=PROMPT_TOKENS),
            num_tokens=NUM_TOKENS,
        )
        for number in range(NUM_STREAMS)
    ]
    result, _ = cluster.run(setting, write_load(Load(arrivals=arrivals), folder, "alone"), within_s=WITHIN_S)
    interval_s = statistics.median(interval for one in result.answers for interval in one.intervals_s)
    ttft_s = statistics.median(one.ttft_s - one.sent_s for one in result.answers)
    seen, pairs = PROMPT_TOKENS + NUM_TOKENS // 2, PROMPT_TOKENS * (PROMPT_TOKENS + 1) / 2
    decode_s = timing.step_s + timing.decode_s + seen * timing.decode_context_s
    prefill_s = timing.step_s + PROMPT_TOKENS * timing.prompt_token_s + pairs * timing.prompt_pair_s
    step_s = max(0.0, interval_s - decode_s)
    return Overheads(step_s=step_s, message_s=max(0.0, ttft_s - prefill_s - step_s) / NUM_MESSAGES)
