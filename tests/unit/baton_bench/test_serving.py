"""A measurement's requests before and during it, as a server sees them."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter

from baton_bench.load_run import Limits
from baton_bench.serving import HttpServer, ServePlan, TokenChoice, measure_server
from baton_bench.synthetic import PrefixRepetition
from baton_bench.targets import RequestDefaults
from tests.unit.baton_bench.scripted_server import EVENTS, serving, sized


def test_warm_ups_leave_the_measured_requests_as_they_are() -> None:
    def prompts_of(num_warmups: int) -> list[tuple[int, ...]]:
        async def main() -> list[bytes]:
            async with serving(script) as (server, _):
                assert server.origin is not None
                plan = ServePlan(
                    server=HttpServer(origin=server.origin),
                    model="m",
                    defaults=RequestDefaults(request_id_prefix="run-"),
                    prompts=PrefixRepetition(prefix_len=8, suffix_len=4, num_prefixes=3, output_len=1),
                    tokens=TokenChoice(vocab_size=500),
                    num_prompts=6,
                    num_warmups=num_warmups,
                    pace=None,
                    limits=Limits(max_concurrency=1, request_timeout_s=30.0),
                    seed=1,
                    ready_timeout_s=0.0,
                )
                await measure_server(plan, lambda _: None)
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
