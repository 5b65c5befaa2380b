"""Measures the gap that a hand-over adds between the first two tokens after a chunked prefill.

    python -m bench.handover_gap [MODEL] [--prompts 256 512 1024] [--chunk 128] [--transport shared_memory]

A cluster with a prefill and a decode worker, each a process, every request split; one request at a time, each
of another prompt. The gap is held against one inter-token latency (the median of the same stream's) plus 5 %
of the prefill time. Where it goes: what of the transfer is left once the first token is there, since blocks
travel while later chunks are computed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from bench.command_line import make_parser
from bench.processes import free_port

SHARE: Final = 0.05
"""Allowed share of the prefill time, besides one inter-token latency."""
NUM_TOKENS: Final = 24
READY_WITHIN_S: Final = 180.0
ANSWER_WITHIN_S: Final = 60.0
ASK_WITHIN_S: Final = 5.0
"""The deadline of a request to a cluster that may not be ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Times of one answer, in seconds."""

    gap_s: float
    itl_s: float
    prefill_s: float
    transfer_s: float

    @property
    def allowed_s(self) -> float:
        return self.itl_s + SHARE * self.prefill_s


@contextmanager
def cluster(args: argparse.Namespace) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start it; gives its process and the router's address."""
    port = free_port()
    command = [sys.executable, "-m", "baton", "serve", *([args.model] if args.model else [])]
    command += ["--port", "0", "--grpc-port", str(port)]
    command += ["--split", "always", "--kv-transport", args.transport]
    command += ["--max-num-batched-tokens", str(args.chunk), "--kv-cache-memory-bytes", str(2**28)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process, f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def make_request(number: int, num_tokens: int) -> pb.GenerateRequest:
    """A prompt that begins like no other one."""
    params = pb.SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    ids = [4 + (number * 7919 + position * 31) % 490 for position in range(num_tokens)]
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling_params=params)


async def ask(stub: Any, request: pb.GenerateRequest, within_s: float = ANSWER_WITHIN_S) -> Stream | None:
    """Take one answer; None if it was not split.

    Raises:
        AioRpcError: it failed, or was not whole within `within_s` seconds.
    """
    at_s: list[float] = []
    timings = None
    async for event in stub.Generate(request, wait_for_ready=True, timeout=within_s):
        at_s += [time.perf_counter()] * len(event.tokens.token_ids)
        if event.HasField("finished"):
            timings = event.finished.timings
    if timings is None or not timings.transferred_bytes:
        return None
    later = [after - before for before, after in pairwise(at_s[1:])]
    return Stream(
        gap_s=at_s[1] - at_s[0],
        itl_s=statistics.median(later),
        prefill_s=timings.prefill_s,
        transfer_s=timings.transfer_s,
    )


async def wait_until_split(stub: Any, process: subprocess.Popen[bytes], num_tokens: int) -> int:
    """Ask until both workers have joined, and have met; returns the number of requests.

    Raises:
        RuntimeError: the process has ended, or splits no request within READY_WITHIN_S.
    """
    deadline, number, error = time.monotonic() + READY_WITHIN_S, 0, "no request was split"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"baton serve ended with status {process.returncode}")
        number += 1
        try:
            if await ask(stub, make_request(number, num_tokens), ASK_WITHIN_S) is not None:
                return number
        except grpc.aio.AioRpcError as failure:
            error = f"{failure.code().name}: {failure.details()}"
            await asyncio.sleep(0.2)
    raise RuntimeError(f"baton serve was not ready within {READY_WITHIN_S:g} s: {error}")


async def run(process: subprocess.Popen[bytes], address: str, args: argparse.Namespace) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = BatonStub(channel)
        number = await wait_until_split(stub, process, args.prompts[0])
        print("| prompt | chunks | prefill, ms | transfer, ms | ITL, ms | gap, ms | allowed, ms | of it |")
        print("|---|---|---|---|---|---|---|---|")
        for length in args.prompts:
            streams = []
            for _ in range(args.repeats):
                number += 1
                streams.append(await ask(stub, make_request(number, length)))
            print(
                row(length, -(-length // args.chunk), [one for one in streams if one is not None]), flush=True
            )


def row(length: int, num_chunks: int, streams: list[Stream]) -> str:
    """Medians; the ratio is that of each stream."""
    times = [
        statistics.median(getattr(one, name) for one in streams) * 1e3
        for name in ("prefill_s", "transfer_s", "itl_s", "gap_s", "allowed_s")
    ]
    ratio = statistics.median(one.gap_s / one.allowed_s for one in streams)
    cells = [str(length), str(num_chunks), *(f"{time_ms:.2f}" for time_ms in times), f"{ratio:.2f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", nargs="?", default="", help="folder or id; the bundled one if left out")
    parser.add_argument("--prompts", type=int, nargs="+", default=[256, 512, 1024], help="tokens")
    parser.add_argument("--chunk", type=int, default=128, help="prompt tokens to a step")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--transport", default="auto")
    args = parser.parse_args()
    with cluster(args) as (process, address):
        asyncio.run(run(process, address, args))


if __name__ == "__main__":
    main()
