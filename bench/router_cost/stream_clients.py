"""Clients that read streams as cheaply as they can, so that they measure the server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub

PROMPT = "The os module provides a portable way of using operating system dependent functionality. " * 4
MODEL: Final = "model"
_USAGE: Final = re.compile(rb'"completion_tokens": ?(\d+)')
Counts = tuple[int, int]
Ask = Callable[[int], Awaitable[Counts]]
"""Streams one answer of so many tokens; returns how many tokens and how many events it had."""


def grpc_client(address: str) -> Ask:
    channel = grpc.aio.insecure_channel(address)
    stub = BatonStub(channel)

    async def ask(num_tokens: int) -> Counts:
        params = pb.SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        call = stub.Generate(pb.GenerateRequest(text=PROMPT, sampling_params=params))
        received = [len(event.tokens.token_ids) async for event in call if event.HasField("tokens")]
        return sum(received), len(received)

    return ask


def http_client(address: str) -> Ask:
    host, port = address.rsplit(":", 1)

    async def ask(num_tokens: int) -> Counts:
        body = {
            "model": MODEL,
            "prompt": PROMPT,
            "max_tokens": num_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        options = {"stream": True, "stream_options": {"include_usage": True}}
        payload = json.dumps({**body, **options}).encode()
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
        *_, num_received = _USAGE.findall(answer)
        return int(num_received), answer.count(b"data: {") - 1

    return ask


async def load(ask: Ask, *, num_streams: int, num_requests: int, num_tokens: int) -> Counts:
    """Keep `num_streams` requests open until `num_requests` are answered; returns the counts of all."""
    slots = asyncio.Semaphore(num_streams)

    async def one() -> Counts:
        async with slots:
            return await ask(num_tokens)

    counts = await asyncio.gather(*(one() for _ in range(num_requests)))
    return sum(tokens for tokens, _ in counts), sum(events for _, events in counts)
