"""Sends a load on its schedule, whatever becomes of each request, and gathers the answers, on one loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from baton_bench.answers import Answer, BenchRequest, LoadRun
from baton_bench.targets import Target

LEAD_S: Final = 0.05
"""Between the start of a run and its first request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run."""

    max_concurrency: int
    """Requests at a time; those that are due wait for one of them to end."""
    request_timeout_s: float
    """Seconds that a request may take from its sending to its end."""


OnEnd = Callable[[Answer], None]


async def run_load(
    target: Target,
    requests: Sequence[BenchRequest],
    times_s: Sequence[float],
    limits: Limits,
    on_end: OnEnd,
    *,
    keeps_part: bool = False,
) -> LoadRun:
    """Send each request at its time, in seconds from the start.

    At most `max_concurrency` are open at a time, so what waits here is the rest of `requests` alone. With
    `keeps_part`, a cancellation ends the run early, and the answers that have ended are returned.
    """
    loop = asyncio.get_running_loop()
    slots = asyncio.Semaphore(limits.max_concurrency)
    answers: list[Answer] = []
    start_s, cpu_s = loop.time() + LEAD_S, time.process_time()
    held_until_s = start_s
    is_whole = True
    try:
        async with asyncio.TaskGroup() as tasks:
            for request, at_s in zip(requests, times_s, strict=True):
                due_s = start_s + at_s
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
                is_full = slots.locked()
                await slots.acquire()
                held_until_s = loop.time() if is_full else held_until_s
                allowed_s = max(due_s, held_until_s)
                answer = Answer(request=request, due_s=due_s, allowed_s=allowed_s, sent_s=allowed_s)
                answers.append(answer)
                tasks.create_task(_send(target, answer, limits.request_timeout_s, slots, on_end))
    except asyncio.CancelledError:
        if not keeps_part:
            raise
        is_whole = False
        answers = [answer for answer in answers if answer.ended_s]
    duration_s = loop.time() - start_s
    return LoadRun(
        answers=answers,
        start_s=start_s,
        duration_s=duration_s,
        cpu_share=(time.process_time() - cpu_s) / (duration_s + LEAD_S),
        is_whole=is_whole,
    )


async def _send(
    target: Target, answer: Answer, timeout_s: float, slots: asyncio.Semaphore, on_end: OnEnd
) -> None:
    loop = asyncio.get_running_loop()
    answer.sent_s = loop.time()
    try:
        async with asyncio.timeout(timeout_s):
            await target.send(answer)
    except TimeoutError:
        answer.error = f"no whole answer within {timeout_s:g} s"
    except (OSError, ValueError) as error:
        answer.error = str(error) or type(error).__name__
    finally:
        slots.release()
    answer.ended_s = loop.time()
    on_end(answer)
