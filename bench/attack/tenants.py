"""Attacks by a client with a key, whose requests are large, slow or odd."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Final

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from bench.attack.grammars import COMPLETIONS
from bench.attack.strangers import ANSWER_S, HOLD_S, JUNK_SIZES
from bench.attack.targets import Attack, Target, at_once

MAX_ID: Final = 4095
NUM_IDS: Final = 2000
FROM_CLIENT: Final = "Internal error from Core"
"""The words of gRPC's own client where the server has ended a stream that it still writes to."""
NUM_CANCELLED: Final = 500
QUEUED_S: Final = 300.0
"""The queue timeout of the routers: a tenant's small request waits behind its large ones."""
ODD: Final[tuple[dict[str, Any], ...]] = (
    *({name: value} for name in ("n", "max_tokens", "logprobs", "min_tokens") for value in (-1, 2**31, 0.5)),
    *({name: value} for name in ("temperature", "top_p", "min_p") for value in (-1, 1e308, "NaN", None, [])),
    *({"seed": value} for value in (2**63 - 1, 2**64, -(2**63), "1")),
    *({"stop": value} for value in ([""], ["a"] * 5000, "\0", ["x" * 100_000], {"a": 1})),
    *({"logit_bias": value} for value in ({"1": 1e308}, {"-1": 1}, {str(one): 1 for one in range(5000)}, [])),
    *({"allowed_token_ids": value} for value in ([], [-1], [2**40], list(range(5000)))),
    *({"bad_words": value} for value in ([""], ["a"] * 5000, ["\ud800"])),
    *({"resume_token": value} for value in ("a", "a" * 2000, "AAAA" * 200)),
    *({"request_id": value} for value in ("", "a" * 129, "\0", "../..")),
    *({"priority": 2**40}, {"cache_salt": "\0"}, {"prompt": [[]]}, {"prompt": []}, {"prompt": [2**40]}),
    *({"model": "other"}, {"truncate_prompt_tokens": -5}, {"logits_processors": ["os:system"]}, {"odd": 1}),
)
"""Fields of completions with values that are out of range, of another type or at an edge."""


def random_ids(target: Target, count: int) -> list[int]:
    return target.rng.choices(range(4, MAX_ID), k=count)


async def prompt_logprobs(target: Target) -> None:
    body = {
        "prompt": [random_ids(target, NUM_IDS) for _ in range(60)],
        "max_tokens": 1,
        "prompt_logprobs": 20,
    }
    async with target.session() as session:
        await target.post(session, COMPLETIONS, body)


async def many_logprobs(target: Target) -> None:
    body = {"prompt": random_ids(target, 20), "n": 64, "max_tokens": 120, "ignore_eos": True, "logprobs": 20}
    async with target.session() as session:
        await target.post(session, COMPLETIONS, body)


async def big_bodies(target: Target) -> None:
    async with target.session() as session:

        async def one(number: int) -> None:
            await target.post(session, COMPLETIONS, {"prompt": "a " * 1_900_000, "max_tokens": 1})

        await at_once(40, one)


async def slow_bodies(target: Target) -> None:
    whole = target.request(COMPLETIONS, b"{" * 3_000_000)
    head = whole[: whole.index(b"{")]

    async def one(number: int) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(HOLD_S), target.connected() as (_, writer):
                writer.write(head + b"{" * 2**20)
                while True:
                    await asyncio.sleep(0.5)
                    writer.write(b"{")
                    await writer.drain()
        target.end("over")

    await at_once(40, one)


async def tokenize(target: Target) -> None:
    async with target.session() as session:

        async def one(number: int) -> None:
            await target.post(session, "/tokenize", {"prompt": "the module " * 300_000})
            await target.post(session, "/detokenize", {"tokens": random_ids(target, 700_000)})

        await at_once(8, one)


async def cancels(target: Target) -> None:
    """Begin hundreds of streams and leave each somewhere."""
    async with target.channel() as (channel, metadata):

        async def one(number: int) -> None:
            params = pb.SamplingParams(max_tokens=400, ignore_eos=True, n=target.rng.choice((1, 1, 4)))
            ids = random_ids(target, target.rng.choice((5, 80, 900)))
            request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling_params=params)
            call = BatonStub(channel).Generate(request, metadata=metadata)
            await asyncio.sleep(target.rng.random() * 3)
            call.cancel()
            with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await call.code()
            target.end("cancelled")

        await at_once(NUM_CANCELLED, one)


async def deadlines(target: Target) -> None:
    """Give calls so little time that most end on the way."""
    async with target.channel() as (channel, metadata):

        async def one(number: int) -> None:
            params = pb.SamplingParams(max_tokens=500, ignore_eos=True)
            request = pb.GenerateRequest(text="The os module", sampling_params=params)
            call = BatonStub(channel).Generate(
                request, metadata=metadata, timeout=target.rng.uniform(0.001, 3)
            )
            with suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            target.end((await call.code()).name)

        await at_once(150, one)


async def leaving_readers(target: Target) -> None:
    """Stream over HTTP and hang up in the middle."""
    body = {"prompt": "The os module", "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 4}
    content = target.request(COMPLETIONS, json.dumps(body).encode())

    async def one(number: int) -> None:
        with suppress(OSError):
            async with target.connected() as (reader, writer):
                writer.write(content)
                with suppress(TimeoutError):
                    async with asyncio.timeout(target.rng.random() * 2):
                        while await reader.read(2**12):
                            pass
        target.end("left")

    await at_once(60, one)


async def unread_streams(target: Target) -> None:
    """Take nothing of streams with log-probabilities."""
    body = {
        "prompt": "The os",
        "max_tokens": 1000,
        "ignore_eos": True,
        "stream": True,
        "n": 4,
        "logprobs": 20,
    }
    content = target.request(COMPLETIONS, json.dumps(body).encode())

    async def one(number: int) -> None:
        with suppress(OSError):
            async with target.connected() as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(content)
                await asyncio.sleep(HOLD_S)
        target.end("left")

    await at_once(8, one)


async def odd_parameters(target: Target) -> None:
    async with target.session() as session:
        for odd in ODD:
            body = {"prompt": "The os module", "max_tokens": 4, **odd}
            status, answer = await target.ask(session, COMPLETIONS, body)
            if status >= 500 and status not in (503, 504):
                target.wrong(f"{json.dumps(odd)[:200]} is answered with {status}: {answer}")


async def own_upgrade(target: Target) -> None:
    """Post as Java's client does, in two segments: the answer has to be that of the same request without."""
    content = json.dumps({"prompt": "The os module", "max_tokens": 4, "temperature": 0}).encode()
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
    whole = target.request(COMPLETIONS, content, *upgrade)

    async def one(number: int) -> None:
        statuses: list[bytes] = []
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(QUEUED_S), target.connected() as (reader, writer):
                for part in (whole[: -len(content)], content):
                    writer.write(part)
                    await asyncio.sleep(0.1)
                statuses.append((await reader.readline())[9:12])
        target.end(statuses)
        if statuses not in ([b"200"], [b"429"], [b"503"]):
            target.wrong(f"POST with Upgrade: h2c is answered with {statuses}")

    await at_once(10, one)


async def own_half_close(target: Target) -> None:
    content = json.dumps({"prompt": "The os module", "max_tokens": 4}).encode()
    whole = target.request(COMPLETIONS, content, "Connection: close")

    async def one(number: int) -> None:
        statuses = await target.exchange(whole, within_s=30.0, ends=True)
        target.end(statuses)
        if statuses not in ([200], [429], [503]):
            target.wrong(f"POST whose client sends no more is answered with {statuses}")

    await at_once(10, one)


async def workers_junk(target: Target) -> None:
    """Act as a worker that sends random frames; where workers show no certificate a key is enough."""
    async with target.channel() as (channel, metadata):

        async def one(number: int) -> None:
            frames = [target.rng.randbytes(target.rng.choice(JUNK_SIZES)) for _ in range(3)]
            call = channel.stream_stream("/baton.v1.Sessions/Connect")(
                iter(frames), timeout=ANSWER_S, metadata=metadata
            )
            with suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            code = (await call.code()).name
            target.end(code)
            if code in ("INTERNAL", "UNKNOWN") and (details := await call.details()) != FROM_CLIENT:
                target.wrong(f"random frames of a worker end as {code}: {details}")

        await at_once(100, one)


async def bodies_of_nothing(target: Target) -> None:
    """Send JSON that is deep, wide or endless."""
    bodies = (
        *(b"[" * 2_000_000, b'{"a":' * 500_000, b'{"prompt": ' + b"9" * 3_000_000 + b"}"),
        *(b'{"prompt": "' + rb"\ud800" * 600_000 + b'"}', b'{"a": 1, ' * 300_000, b"\xff" * 3_000_000),
        json.dumps({f"k{number}": number for number in range(200_000)}).encode(),
    )
    async with target.session() as session:

        async def one(number: int) -> None:
            await target.post(session, COMPLETIONS, bodies[number % len(bodies)])

        await at_once(2 * len(bodies), one)


TENANTS: Final = tuple(
    Attack(name=name, what=what, run=run, has_key=True)
    for name, what, run in (
        ("prompt-logprobs", f"60 prompts of {NUM_IDS} ids with prompt_logprobs 20", prompt_logprobs),
        ("many-logprobs", "n of 64 with 20 log-probabilities of each token", many_logprobs),
        ("big-bodies", "40 bodies of 3.8 MB at once", big_bodies),
        ("slow-bodies", "40 bodies of 3 MB, of which a byte comes twice a second", slow_bodies),
        ("broken-json", "JSON that is deep, wide, cut or of huge numbers, up to 3 MB", bodies_of_nothing),
        ("tokenize", "texts and ids of MiB to tokenize and to detokenize", tokenize),
        ("cancels", f"{NUM_CANCELLED} streams, each cancelled at a random moment", cancels),
        ("deadlines", "150 calls with deadlines from a millisecond to 3 s", deadlines),
        ("leaving-readers", "60 HTTP streams whose clients hang up in the middle", leaving_readers),
        ("unread-streams", "8 streams of four sequences of which nothing is taken", unread_streams),
        ("odd-parameters", "fields out of range, of another type and at their edges", odd_parameters),
        ("own-upgrades", "POST with Upgrade: h2c in two segments, as Java's client sends it", own_upgrade),
        ("own-half-closes", "POST by clients that shut their sending side down", own_half_close),
        ("workers-junk", "random frames at the gRPC port for workers", workers_junk),
    )
)
