"""Clients that read streams as cheaply as they can, so that they measure the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub

PROMPT = "The os module provides a portable way of using operating system dependent functionality. " * 4
Ask = Callable[[int], Awaitable[int]]
"""Streams one answer of so many tokens; returns how many events it had."""


def grpc_client(address: str) -> Ask:
    channel = grpc.aio.insecure_channel(address)
    stub = BatonStub(channel)

    async def ask(num_tokens: int) -> int:
        params = pb.SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        call = stub.Generate(pb.GenerateRequest(text=PROMPT, sampling_params=params))
        num_events = 0
        async for event in call:
            num_events += event.HasField("tokens")
        return num_events

    return ask


def http_client(address: str) -> Ask:
    host, port = address.rsplit(":", 1)

    async def ask(num_tokens: int) -> int:
        body = {"prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0.0, "ignore_eos": True}
        payload = json.dumps({**body, "stream": True}).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        answer = await reader.read(-1)
        writer.close()
        if not (answer.startswith(b"HTTP/1.1 200") and b"[DONE]" in answer):
            raise RuntimeError(f"no whole answer: {answer[:500]!r}")
        return answer.count(b"data: {")

    return ask


async def load(ask: Ask, *, num_streams: int, num_requests: int, num_tokens: int) -> int:
    """Keep `num_streams` requests open until `num_requests` are answered; returns the events of all."""
    slots = asyncio.Semaphore(num_streams)

    async def one() -> int:
        async with slots:
            return await ask(num_tokens)

    return sum(await asyncio.gather(*(one() for _ in range(num_requests))))
