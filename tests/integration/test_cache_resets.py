"""Prefix caches are reset over HTTP while requests run, which lose their blocks and no token."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton_core.sessions.control_messages import Control
from baton_worker.core.controls import Controls, OpenWork
from tests.e2e.calls import draw_prompt
from tests.integration.controlled_cluster import Site, operated
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import Gate, eventually

NUM_TOKENS = 40
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "seed": 8, "top_p": 0.9, "n": 2},
)


async def stream(site: Site, number: int) -> dict[int, list[int]]:
    """Return the tokens of each choice of a stream that ends."""
    body = {
        "model": "tiny",
        "prompt": draw_prompt(100 + number, seed=number % 3),
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        **SAMPLINGS[number % len(SAMPLINGS)],
    }
    tokens: dict[int, list[int]] = {}
    async with site.http.stream("POST", "/v1/completions", json=body, timeout=60.0) as response:
        assert response.status_code == 200, await response.aread()
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    for choice in (choice for line in lines for choice in json.loads(line)["choices"]):
        tokens.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert {len(ids) for ids in tokens.values()} == {NUM_TOKENS}
    return tokens


async def reset(site: Site) -> dict[str, Any]:
    response = await site.http.post("/reset_prefix_cache?reset_running_requests=true", timeout=30.0)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def has_preempted(site: Site) -> bool:
    families = text_string_to_metric_families((await site.http.get("/metrics")).text)
    samples = (sample for family in families for sample in family.samples)
    return any(one.value > 0 for one in samples if one.name == "vllm:num_preemptions_total")


@pytest.mark.parametrize("split", ["never", "always"])
async def test_streams_have_the_same_tokens_when_caches_are_reset_under_them(split: str) -> None:
    async with operated(split=split, max_num_batched_tokens=64) as site:
        expected = [await stream(site, number) for number in range(6)]
        running = [asyncio.create_task(stream(site, number)) for number in range(6)]
        num_reset = 0
        while not all(one.done() for one in running):
            num_reset += (await reset(site))["success"]
            await asyncio.sleep(0.1)
        assert num_reset >= 2
        assert await asyncio.gather(*running) == expected


@pytest.mark.parametrize("split", ["never", "always"])
async def test_a_reset_takes_the_blocks_of_a_running_request(
    split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, taken, take = Gate(), list[str](), Controls.take

    def note(controls: Controls, now: float, router_id: str, control: Control, work: OpenWork) -> Any:
        taken.append(control.argument_json)
        return take(controls, now, router_id, control, work)

    monkeypatch.setattr(Controls, "take", note)
    async with operated(split=split, decode_gate=gate) as site:
        expected = await stream(site, 0)
        running = asyncio.create_task(stream(site, 0))
        gate.let_through(6)
        await until(lambda: gate.is_holding)
        resetting = asyncio.create_task(reset(site))
        await until(lambda: len(taken) == (1 if split == "never" else 2))
        assert not resetting.done()
        gate.open()
        answer = await resetting
        assert (answer["success"], answer["num_in_use"]) == (True, 0)
        assert await running == expected
        await eventually(lambda: has_preempted(site))
