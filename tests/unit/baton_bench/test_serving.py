"""A measurement's requests before and during it, as a server sees them."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from baton_bench.load_run import Limits
from baton_bench.serving import HttpServer, ServePlan, TokenChoice, measure_server
from baton_bench.synthetic import PrefixRepetition
from baton_bench.targets import RequestDefaults
from baton_core.errors import RequestError
from tests.unit.baton_bench.scripted_server import EVENTS, ScriptedServer, serving, sized


def make_plan(server: ScriptedServer, **changes: Any) -> ServePlan:
    assert server.origin is not None
    plan = ServePlan(
        server=HttpServer(origin=server.origin),
        model="m",
        defaults=RequestDefaults(request_id_prefix="run-"),
        prompts=PrefixRepetition(prefix_len=8, suffix_len=4, num_prefixes=3, output_len=1),
        tokens=TokenChoice(vocab_size=500),
        num_prompts=6,
        num_warmups=0,
        pace=None,
        limits=Limits(max_concurrency=1, request_timeout_s=30.0),
        seed=1,
        ready_timeout_s=0.0,
    )
    return replace(plan, **changes)


def test_warm_ups_leave_the_measured_requests_as_they_are() -> None:
    def prompts_of(num_warmups: int) -> list[tuple[int, ...]]:
        async def main() -> list[bytes]:
            async with serving(script) as (server, _):
                await measure_server(make_plan(server, num_warmups=num_warmups), lambda _: None)
                return server.requests

        requests = asyncio.run(main())
        names = [re.findall(rb"(?i)x-request-id: (\S+)", one) for one in requests if b"POST" in one]
        assert names == [[b"run-%d" % number] for number in range(len(names))]
        bodies = [json.loads(one.partition(b"\r\n\r\n")[2]) for one in requests if b"POST" in one]
        return [tuple(body["prompt"]) for body in bodies]

    async def script(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(EVENTS))

    alone, after = prompts_of(0), prompts_of(2)
    assert (len(alone), after[2:]) == (6, alone)
    assert sorted(Counter(prompt[:8] for prompt in alone).values()) == [2, 2, 2]


@pytest.mark.parametrize("lists_models", [False, True])
async def test_a_server_that_hangs_is_waited_for_as_long_as_told(lists_models: bool) -> None:
    async def script(number: int, writer: asyncio.StreamWriter) -> None:
        if lists_models and number == 0:
            writer.write(sized(b'{"data": [{"id": "m"}]}'))

    async with serving(script) as (server, _), asyncio.timeout(20):
        with pytest.raises(RequestError, match=r": no answer within 0\.2 s"):
            await measure_server(make_plan(server, ready_timeout_s=0.2), lambda _: None)


async def test_the_list_of_models_and_the_first_answer_have_one_time_together() -> None:
    async def script(number: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(sized(EVENTS if number else b'{"data": [{"id": "m"}]}'))

    async with serving(script) as (server, _):
        with pytest.raises(RequestError, match=r": no answer within 0\.5 s"):
            await measure_server(make_plan(server, ready_timeout_s=0.5), lambda _: None)
