"""Answers as a server would have given them."""

from __future__ import annotations

from collections.abc import Sequence

from baton_bench.answers import Answer, BenchRequest, LoadRun


def make_answer(
    times_s: Sequence[float] = (1.1, 1.2, 1.4),
    *,
    sent_s: float = 1.0,
    due_s: float = 1.0,
    allowed_s: float | None = None,
    tokens: int | None = None,
    prompt: int = 10,
    error: str = "",
) -> Answer:
    """One token for each time, unless `tokens` says otherwise."""
    return Answer(
        request=BenchRequest(prompt="x", num_prompt_tokens=prompt, num_tokens=len(times_s)),
        due_s=due_s,
        allowed_s=due_s if allowed_s is None else allowed_s,
        sent_s=sent_s,
        times_s=list(times_s),
        ended_s=times_s[-1] + 0.01 if times_s else sent_s + 0.01,
        reported_tokens=len(times_s) if tokens is None else tokens,
        error=error,
    )


def make_run(*answers: Answer) -> LoadRun:
    return LoadRun(answers=answers, start_s=1.0, duration_s=2.0, cpu_share=0.1)
