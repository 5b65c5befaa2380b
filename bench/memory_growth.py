"""Memory of each part of a cluster over thousands of requests: does it settle?

Two routers, two prefill and two decode workers and a Redis answer short requests, each with a prompt of its
own, until each router has served several times what it remembers of ended requests.

    python -m bench.memory_growth [--requests 20000] [--clients 64]
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from bench.chaos.cluster import Cluster, running_cluster, wait_until_idle
from bench.command_line import make_parser

SAMPLES: Final = 10
PROMPT_TOKENS: Final = (40, 200)
MAX_TOKENS: Final = 8
WITHIN_S: Final = 120.0


def make_request(rng: Random) -> pb.GenerateRequest:
    """A prompt that no other request has, and a short answer to it."""
    prompt = rng.choices(range(4, 500), k=rng.randint(*PROMPT_TOKENS))
    params = pb.SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params)


async def serve(cluster: Cluster, num_requests: int, num_clients: int, rng: Random) -> None:
    """Ask all routers in turn.

    Raises:
        grpc.aio.AioRpcError: a request did not get its answer.
    """
    channels = [grpc.aio.insecure_channel(address) for address in cluster.addresses]
    slots = asyncio.Semaphore(num_clients)

    async def ask(number: int) -> None:
        async with slots:
            stub = BatonStub(channels[number % len(channels)])
            async for _ in stub.Generate(make_request(rng), timeout=WITHIN_S):
                pass

    async with asyncio.TaskGroup() as asking:
        for number in range(num_requests):
            asking.create_task(ask(number))
    for channel in channels:
        await channel.close()


async def run(cluster: Cluster, num_requests: int, num_clients: int) -> None:
    await wait_until_idle(cluster)
    rng = Random(0)
    names = [part.name for part in cluster.parts]
    print("| requests | " + " | ".join(names) + " |\n" + "|---" * (1 + len(names)) + "|")
    for sample in range(1, SAMPLES + 1):
        await serve(cluster, num_requests // SAMPLES, num_clients, rng)
        await wait_until_idle(cluster)
        sizes = " | ".join(f"{part.memory_mib():.1f}" for part in cluster.parts)
        print(f"| {sample * num_requests // SAMPLES:,} | {sizes} |", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=64, help="requests at a time")
    args = parser.parse_args()
    with running_cluster() as cluster:
        asyncio.run(run(cluster, args.requests, args.clients))


if __name__ == "__main__":
    main()
