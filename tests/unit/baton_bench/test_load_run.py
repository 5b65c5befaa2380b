"""A load as it is sent: on time, so many at a time, with a deadline for each request, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from baton_bench.answers import BenchRequest, LoadRun
from baton_bench.load_run import Limits, run_load
from baton_bench.targets import Backend, OpenAiTarget, RequestDefaults
from tests.unit.baton_bench.scripted_server import EVENTS, Script, ScriptedServer, serving, sized

pytestmark = pytest.mark.slow

REQUEST = BenchRequest(prompt="x", num_prompt_tokens=1, num_tokens=1)


def run(script: Script, times_s: Sequence[float], **limits: float) -> tuple[LoadRun, ScriptedServer]:
    given = {"max_concurrency": 100, "request_timeout_s": 30.0, **limits}

    async def main() -> tuple[LoadRun, ScriptedServer]:
        async with serving(script) as (server, client):
            target = OpenAiTarget(client, Backend.OPENAI, "", RequestDefaults())
            requests, ended = [REQUEST] * len(times_s), []
            load = await run_load(target, requests, times_s, Limits(**given), ended.append)  # type: ignore[arg-type]
            assert len(ended) == len(requests)
            return load, server

    return asyncio.run(main())


def slow(seconds: float) -> Script:
    async def script(_: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        writer.write(sized(EVENTS))

    return script


def test_requests_leave_when_they_are_due_though_none_is_answered() -> None:
    all_are_here = asyncio.Barrier(3)

    async def answer_all_at_once(_: int, writer: asyncio.StreamWriter) -> None:
        await all_are_here.wait()
        writer.write(sized(EVENTS))

    load, _ = run(answer_all_at_once, [0.0, 0.02, 0.04])
    assert [round(answer.due_s - load.start_s, 6) for answer in load.answers] == [0.0, 0.02, 0.04]
    assert all(answer.lag_s >= 0 and answer.slot_wait_s == 0 for answer in load.answers)
    assert not any(answer.error for answer in load.answers)


def test_requests_over_the_limit_wait_for_a_slot() -> None:
    load, server = run(slow(0.03), [0.0] * 4, max_concurrency=2)
    waits = [answer.slot_wait_s for answer in load.answers]
    assert waits[:2] == [0.0, 0.0]
    assert all(wait_s > 0.02 for wait_s in waits[2:])
    first_end_s = min(answer.ended_s for answer in load.answers[:2])
    assert all(answer.sent_s >= first_end_s for answer in load.answers[2:])
    assert server.num_connections == 2


def test_a_silent_server_costs_each_request_its_deadline() -> None:
    load, _ = run(slow(2.0), [0.0, 0.0], request_timeout_s=0.05)
    assert [answer.error for answer in load.answers] == ["no whole answer within 0.05 s"] * 2
    assert load.duration_s < 2.0


def test_a_server_that_dies_in_the_middle_costs_only_what_it_had() -> None:
    async def die_at_the_third(number: int, writer: asyncio.StreamWriter) -> None:
        if number < 2:
            writer.write(sized(EVENTS))
        else:
            writer.write(sized(EVENTS)[:-10])
            writer.close()

    load, _ = run(die_at_the_third, [0.0] * 3, max_concurrency=1)
    assert [bool(answer.error) for answer in load.answers] == [False, False, True]
    assert load.answers[2].times_s, "what it had is there"


def test_a_refusal_is_told() -> None:
    async def refuse(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(b'{"error": {"message": "come again"}}', status="429 Too Many Requests"))

    load, server = run(refuse, [0.0, 0.0], max_concurrency=1)
    assert [answer.error for answer in load.answers] == ["HTTP 429: come again"] * 2
    assert server.num_connections == 1


def test_a_load_that_is_cut_off_leaves_the_answers_that_have_ended() -> None:
    async def main() -> LoadRun:
        is_third_sent = asyncio.Event()

        async def hang_at_the_third(number: int, writer: asyncio.StreamWriter) -> None:
            if number == 2:
                is_third_sent.set()
            else:
                writer.write(sized(EVENTS))

        async with serving(hang_at_the_third) as (_, client):
            target = OpenAiTarget(client, Backend.OPENAI, "", RequestDefaults())
            limits = Limits(max_concurrency=1, request_timeout_s=30.0)
            load = asyncio.create_task(
                run_load(target, [REQUEST] * 5, [0.0] * 5, limits, lambda _: None, keeps_part=True)
            )
            await is_third_sent.wait()
            load.cancel()
            return await load

    load = asyncio.run(main())
    assert not load.is_whole
    assert [(bool(answer.texts), answer.error) for answer in load.answers] == [(True, "")] * 2
