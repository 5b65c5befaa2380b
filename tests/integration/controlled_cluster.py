"""A router and its workers in one process, as their operator sees them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from baton_core.sessions.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub, OperatorStub
from baton_router.process.admission_settings import AdmissionSettings
from baton_router.process.http_settings import HttpSettings
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.integration.http_router import client_of
from tests.integration.router_cluster import serving
from tests.integration.worker_cluster import Gate, eventually, working

PROMPT = draw_prompt(100, seed=1)


@dataclass(slots=True)
class Site:
    """A router with a prefill and a decode worker, as its operator sees it."""

    http: httpx.AsyncClient
    baton: BatonStub
    operator: OperatorStub
    workers: AsyncExitStack
    """Ends them."""

    async def generate(self, num_tokens: int = 8) -> tuple[list[int], int]:
        """Tokens that follow the prompt, and how many of its own were cached."""
        events = [event async for event in self.baton.Generate(ask(PROMPT, greedy(num_tokens)))]
        outputs, finished = answer(events)
        return list(outputs[0].token_ids), finished.usage.cached_tokens

    async def control(
        self, action: str, *, timeout_s: float | None = None, **argument: Any
    ) -> dict[str, tuple[Any, str, str]]:
        """Each worker's result, error code and message."""
        request = pb.ControlRequest(action=action, argument_json=json.dumps(argument), timeout_s=timeout_s)
        results = (await self.operator.Control(request)).results
        return {one.worker_id: (json.loads(one.result_json), one.error_code, one.message) for one in results}

    async def has_settled(self) -> bool:
        """Return whether no block is in use at any worker."""
        results = await self.control("reset_prefix_cache")
        return not any(result["num_in_use"] for result, _, _ in results.values())


@asynccontextmanager
async def operated(
    *,
    split: str = "always",
    decode_gate: Gate | None = None,
    move_timeout_s: float = 15.0,
    admission: AdmissionSettings | None = None,
    **worker: Any,
) -> AsyncIterator[Site]:
    """With `split` "never" there is one worker, which does both."""
    async with AsyncExitStack() as stack:
        http = HttpSettings(enable_operator_routes=True)
        server = await stack.enter_async_context(
            serving(
                split=split,
                http=http,
                move_timeout_s=move_timeout_s,
                admission=admission or AdmissionSettings(),
            )
        )
        workers = await stack.enter_async_context(AsyncExitStack())
        for role in (Role.MIXED,) if split == "never" else (Role.PREFILL, Role.DECODE):
            gate = None if role is Role.PREFILL else decode_gate
            await workers.enter_async_context(working(role, server.grpc_port, gate=gate, **worker))
        client = await stack.enter_async_context(client_of(server))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        await stack.enter_async_context(channel)
        await eventually(lambda: _is_healthy(client))
        yield Site(client, BatonStub(channel), OperatorStub(channel), workers)


async def _is_healthy(client: httpx.AsyncClient) -> bool:
    return (await client.get("/health")).status_code == 200
