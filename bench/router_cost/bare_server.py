"""The floor of what a router can cost: servers that stream fixed messages and do nothing else.

    python -m bench.router_cost.bare_server

Prints where it listens. gRPC: `Generate` of Baton's own service. HTTP: Starlette on uvicorn. Each stream gets
an event for one token every millisecond, the pace of `instant_engine`. Other routers take it for a worker.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonServicer, add_BatonServicer_to_server
from baton_service.tcp import listen_at
from bench.command_line import make_parser
from bench.router_cost.instant_engine import STEP_S

CHUNK = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}


class BareService(BatonServicer):
    """Streams as many events as tokens are asked for."""

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:  # noqa: N802
        for position in range(request.sampling_params.max_tokens):
            await asyncio.sleep(STEP_S)
            await context.write(pb.GenerateEvent(tokens=pb.TokensEvent(text=" word", token_ids=[position])))
        await context.write(pb.GenerateEvent(finished=pb.FinishedEvent(request_id="1")))


async def complete(request: Request) -> StreamingResponse:
    body = await request.json()

    async def events() -> AsyncIterator[bytes]:
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(STEP_S)
            choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None}
            yield b"data: " + json.dumps({**CHUNK, "choices": [choice]}).encode() + b"\n\n"
        usage = {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": body["max_tokens"]}
        yield b"data: " + json.dumps({**CHUNK, "choices": [], "usage": usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def describe(_: Request) -> JSONResponse:
    """Answer whoever asks how it is, or what."""
    return JSONResponse({"status": "healthy", "model_path": CHUNK["model"]})


_ABOUT = ("/health", "/server_info", "/get_server_info", "/model_info")
app = Starlette(
    routes=[
        Route("/v1/completions", complete, methods=["POST"]),
        *(Route(path, describe) for path in _ABOUT),
    ]
)


async def serve() -> None:
    grpc_server = grpc.aio.server()
    add_BatonServicer_to_server(BareService(), grpc_server)
    grpc_port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")
    with listen_at("127.0.0.1", 0) as listener:
        http_port = listener.getsockname()[1]
        addresses = {"address": f"127.0.0.1:{grpc_port}", "http_address": f"127.0.0.1:{http_port}"}
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    asyncio.run(serve())
