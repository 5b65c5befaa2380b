"""Requests that name their data-parallel rank, over HTTP and gRPC."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from tests.integration.http_router import client_of, error_of
from tests.integration.router_cluster import ANSWER, serving
from tests.integration.scripted_worker import ScriptedWorker

HEADER = "x-data-parallel-rank"
BODY: dict[str, Any] = {"prompt": "x", "max_tokens": 2}


async def test_a_request_goes_to_the_rank_that_its_header_names() -> None:
    workers = [ScriptedWorker(f"w{rank}", answers=[ANSWER], data_parallel_rank=rank) for rank in range(2)]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving())
        for worker in workers:
            await stack.enter_async_context(worker.joined(server.grpc_port))
        client = await stack.enter_async_context(client_of(server))
        for rank in (1, 1, 1, 0):
            response = await client.post("/v1/completions", json=BODY, headers={HEADER: str(rank)})
            assert response.status_code == 200
        assert [len(worker.specs) for worker in workers] == [1, 3]
        for wrong in ("2", "-1", "a", "9" * 30):
            response = await client.post("/v1/completions", json=BODY, headers={HEADER: wrong})
            assert error_of(response) == (400, HEADER, f"{HEADER} is {wrong!r}; allowed: 0 to 1")
        samples = (await client.get("/metrics")).text
        assert 'baton_worker_data_parallel_rank{worker="w1"} 1' in samples
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        stub = BatonStub(await stack.enter_async_context(channel))
        request = pb.GenerateRequest(text="x")
        request.sampling_params.max_tokens = 2
        assert [event async for event in stub.Generate(request, metadata=((HEADER, "1"),))]
        assert [len(worker.specs) for worker in workers] == [1, 4]
        with pytest.raises(grpc.aio.AioRpcError, match=f"{HEADER} is '2'; allowed: 0 to 1"):
            [event async for event in stub.Generate(request, metadata=((HEADER, "2"),))]
