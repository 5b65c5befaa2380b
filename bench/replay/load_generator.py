"""An open-loop load generator: sends each request when it is due, whatever became of the others.

    python -m bench.replay.load_generator --address 127.0.0.1:8100 --load load.msgpack --result result.msgpack

A process of its own, speaking gRPC with token ids in and out; requests are encoded before the run starts.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.grpc_options import client_options
from baton_service.process import die_with_parent, name_process
from bench.command_line import make_parser
from bench.replay.loads import Answer, Arrival, Load, LoadResult, read, write

LEAD_S = 0.2
"""Before the first arrival."""


def encode(arrival: Arrival) -> pb.GenerateRequest:
    params = pb.SamplingParams(
        max_tokens=arrival.num_tokens, temperature=0.0, ignore_eos=True, detokenize=False
    )
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=arrival.token_ids), sampling_params=params, session_id=arrival.session_id
    )


class LoadGenerator:
    """Sends a load once."""

    def __init__(self, stub: BatonStub, timeout_s: float) -> None:
        self._stub = stub
        self._timeout_s = timeout_s

    async def run(self, arrivals: list[Arrival]) -> LoadResult:
        requests = [encode(arrival) for arrival in arrivals]
        loop = asyncio.get_running_loop()
        start, cpu = loop.time() + LEAD_S, time.process_time()
        sends = [
            self._send(request, start + arrival.at_s)
            for request, arrival in zip(requests, arrivals, strict=True)
        ]
        answers = await asyncio.gather(*sends)
        return LoadResult(answers=answers, wall_s=loop.time() - start, cpu_s=time.process_time() - cpu)

    async def _send(self, request: pb.GenerateRequest, due: float) -> Answer:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(due - loop.time())
        sent_s = loop.time() - due
        times_s: list[float] = []
        token_ids: list[int] = []
        finished = pb.FinishedEvent()
        error = ""
        try:
            async for event in self._stub.Generate(request, timeout=self._timeout_s):
                if event.HasField("tokens"):
                    token_ids += event.tokens.token_ids
                    times_s += [loop.time() - due] * len(event.tokens.token_ids)
                elif event.HasField("finished"):
                    finished = event.finished
        except grpc.aio.AioRpcError as failure:
            error = f"{failure.code().name}: {failure.details()}"
        num_wanted = request.sampling_params.max_tokens
        if not error and len(token_ids) != num_wanted:
            error = f"{len(token_ids)} tokens instead of {num_wanted}"
        timings = finished.timings
        return Answer(
            sent_s=sent_s,
            times_s=times_s,
            token_ids=token_ids,
            cached_tokens=finished.usage.cached_tokens,
            transferred_bytes=timings.transferred_bytes,
            prefill_worker=timings.prefill_worker,
            decode_worker=timings.decode_worker,
            error=error,
        )


async def run(args: argparse.Namespace) -> None:
    load = read(args.load, Load)
    async with grpc.aio.insecure_channel(args.address, options=client_options()) as channel:
        await channel.channel_ready()
        stub = BatonStub(channel)  # type: ignore[no-untyped-call]
        result = await LoadGenerator(stub, args.timeout).run(load.arrivals)
    write(args.result, result)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--address", required=True, help="the router")
    parser.add_argument("--load", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a request may take")
    parser.add_argument("--parent-pid", type=int, default=0, help="end with this process")
    args = parser.parse_args()
    if args.parent_pid:
        die_with_parent(args.parent_pid)
    name_process("load generator")
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
