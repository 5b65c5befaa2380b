"""Workers sleep although requests are open, where the operator says what becomes of these."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.integration.controlled_cluster import operated
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import Gate


@pytest.mark.parametrize("mode", ["abort", "wait"])
async def test_workers_sleep_once_open_requests_are_ended_or_awaited(mode: str) -> None:
    gate = Gate()
    async with operated(decode_gate=gate) as site:
        expected, _ = await site.generate(20)
        gate.close()
        running = asyncio.create_task(site.generate(20))
        await until(lambda: gate.is_holding)
        sleeping = asyncio.create_task(site.http.post(f"/sleep?level=1&mode={mode}"))
        if mode == "abort":
            with pytest.raises(grpc.aio.AioRpcError, match="an operator puts the workers to sleep; send"):
                await running
        waiting = asyncio.create_task(site.generate(20))
        gate.open()
        assert (await sleeping).json() == {"status": "sleeping", "level": 1}
        if mode == "wait":
            assert (await running)[0] == expected
        assert (await site.http.post("/wake_up")).json() == {"status": "awake", "tags": None}
        assert (await waiting)[0] == expected
        assert (await site.generate(20))[0] == expected


async def test_weights_that_waking_has_read_need_no_reading() -> None:
    async with operated(split="never") as site:
        expected, _ = await site.generate()
        reload = {"method": "reload_weights"}
        refused = await site.http.post("/collective_rpc", json=reload)
        assert (refused.status_code, "after sleep(level=2) and wake_up" in refused.text) == (400, True)
        assert (await site.http.post("/sleep?level=2&mode=wait")).status_code == 200
        assert (await site.http.post("/wake_up?tags=weights")).status_code == 200
        assert (await site.http.post("/collective_rpc", json=reload)).status_code == 200
        assert (await site.http.post("/wake_up?tags=kv_cache")).json()["status"] == "awake"
        assert (await site.generate())[0] == expected
