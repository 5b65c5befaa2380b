"""Processes die, clients vanish, operators stop: those concerned are told, others go on, nothing stays."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton import LLM, CompletionOutput, SamplingParams, StructuredOutputsParams
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import (
    BRISK,
    FLOAT32,
    NO_GRAMMARS,
    ONE_MIXED,
    SMALL,
    STOP_WITHIN_S,
    Cluster,
    Family,
    children_of,
    family_of,
    serving,
    starting,
    until,
)
from tests.tiers import exhaustive

ON_THE_WAY_S = 0.1
GOES_ON_WITHIN_S = 80.0
"""From the death of a worker to the end of the last stream, on a busy machine."""
RESTARTED_WITHIN_S = 80.0
CHUNK = 32


KINDS = (
    greedy(120),
    greedy(120, temperature=0.8, seed=3, n=2, repetition_penalty=1.2, stop=["?!?"]),
    greedy(120, temperature=0.8, seed=4, min_tokens=100, bad_words=["a"], presence_penalty=0.5),
    greedy(120, temperature=0.8, seed=5, structured_outputs=StructuredOutputsParams(regex="[a-z ]*")),
)
"""Requests whose sampling depends on all that the router remembers of their text."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One prefill worker that computes long prompts in many steps, and two decode workers."""
    timeouts = ("--move-timeout", str(GOES_ON_WITHIN_S), "--shutdown-timeout", "0.5")
    flags = ("--decode-workers", "2", "--max-num-batched-tokens", str(CHUNK), *timeouts)
    with serving(tmp_path_factory.mktemp("trio"), *SMALL, *FLOAT32, *BRISK, *flags) as cluster:
        yield cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a request ended: with an answer, or with an error at `ended_s` of the monotonic clock."""

    outputs: Sequence[CompletionOutput] = ()
    decode_worker: str = ""
    error: str = ""
    ended_s: float


async def follow(call: Any, num_events: list[int], number: int) -> End:
    """Read a stream to its end, counting its events."""
    events: list[pb.GenerateEvent] = []
    try:
        async for event in call:
            events.append(event)
            num_events[number] += 1
    except grpc.aio.AioRpcError as error:
        return End(error=f"{error.code().name}: {error.details()}", ended_s=time.monotonic())
    outputs, finished = answer(events)
    worker = finished.timings.decode_worker
    return End(outputs=outputs, decode_worker=worker, ended_s=time.monotonic())


async def disturb(
    address: str,
    requests: Sequence[pb.GenerateRequest],
    pid: int,
    signal_number: int,
    is_time: Callable[[list[int]], bool],
) -> tuple[list[End], float]:
    """Send requests, and a signal once `is_time` of their numbers of events; their ends, and when it was."""
    async with asyncio.timeout(100), grpc.aio.insecure_channel(address) as channel:
        num_events = [0] * len(requests)
        calls = [BatonStub(channel).Generate(request) for request in requests]
        ends = [asyncio.create_task(follow(call, num_events, number)) for number, call in enumerate(calls)]
        while not is_time(num_events):  # noqa: ASYNC110 (counts raise no event)
            await asyncio.sleep(0.002)
        os.kill(pid, signal_number)
        disturbed_s = time.monotonic()
        return await asyncio.gather(*ends), disturbed_s


def check_ends(ends: Sequence[End], since_s: float, expected: Sequence[list[CompletionOutput]]) -> set[str]:
    """Every request has the undisturbed answer, and in time; returns the workers that ended the later ones.

    An end may have been on its way already when the worker was disturbed.
    """
    for end, outputs in zip(ends, expected, strict=True):
        assert not end.error
        assert end.outputs == outputs
        assert end.ended_s - since_s < GOES_ON_WITHIN_S
    return {end.decode_worker for end in ends if end.ended_s > since_s + ON_THE_WAY_S}


def expect(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[list[CompletionOutput]]:
    return [output.outputs for output in llm.generate(prompts, params, use_tqdm=False)]


def test_the_prompts_of_a_prefill_worker_that_dies_are_computed_elsewhere(trio: Cluster, llm: LLM) -> None:
    prompts, params = [draw_prompt(1200, seed=number) for number in range(3)], greedy(4)
    requests = [ask(prompt, params) for prompt in prompts]
    expected = expect(llm, prompts, params)
    (pid,) = trio.pids_of("baton prefill-worker")
    ends, killed_s = asyncio.run(disturb(trio.address, requests, pid, signal.SIGKILL, any))
    check_ends(ends, killed_s, expected)
    wait_for_successor(trio, "prefill-worker", pid)
    outputs, finished = answer(trio.stub.Generate(requests[-1]))
    assert (outputs, finished.timings.prefill_worker) == (expected[-1], "prefill-0")


def test_the_streams_of_a_decode_worker_that_dies_go_on_at_the_other(trio: Cluster, llm: LLM) -> None:
    prompts = [draw_prompt(20, seed=10 + number) for number in range(len(KINDS))]
    requests = [ask(prompt, params) for prompt, params in zip(prompts, KINDS, strict=True)]
    expected = [expect(llm, [prompt], params)[0] for prompt, params in zip(prompts, KINDS, strict=True)]
    pid = trio.pids_of("baton decode-worker")[0]
    answer(trio.stub.Generate(requests[-1]))  # Its grammar is compiled: all of them run at the same time.
    ends, killed_s = asyncio.run(
        disturb(trio.address, requests, pid, signal.SIGKILL, lambda counts: min(counts) >= 3)
    )
    assert len(check_ends(ends, killed_s, expected)) == 1
    wait_for_successor(trio, "decode-worker", pid)
    assert answer(trio.stub.Generate(requests[0]))[0] == expected[0]


def test_a_worker_that_freezes_is_given_up_and_comes_back(trio: Cluster, llm: LLM) -> None:
    """Its transport shows no error: only its silence does."""
    prompts, params = [draw_prompt(20, seed=20 + number) for number in range(4)], greedy(120)
    requests = [ask(prompt, params) for prompt in prompts]
    expected = expect(llm, prompts, params)
    pid = trio.pids_of("baton decode-worker")[-1]
    try:
        ends, frozen_s = asyncio.run(
            disturb(trio.address, requests, pid, signal.SIGSTOP, lambda counts: min(counts) >= 3)
        )
        assert len(check_ends(ends, frozen_s, expected)) == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: len(trio.info().workers) == 3, RESTARTED_WITHIN_S, "the worker again")
    assert pid in trio.pids_of("baton decode-worker")
    trio.wait_until_idle()
    assert answer(trio.stub.Generate(requests[0]))[0] == expected[0]


def wait_for_successor(trio: Cluster, command: str, dead_pid: int) -> None:
    """Wait until the launcher has started another worker for the dead one and it has joined."""
    role = command.removesuffix("-worker")
    told = rf"worker {role}-\d was killed by SIGKILL; it is started again in 1 s"
    until(lambda: re.search(told, trio.log.read_text()) is not None, RESTARTED_WITHIN_S, told)
    until(lambda: len(trio.info().workers) == 3, RESTARTED_WITHIN_S, "the worker again")
    assert dead_pid not in trio.pids_of(f"baton {command}")


def test_a_client_that_vanishes_in_mid_stream_leaves_nothing_behind(trio: Cluster) -> None:
    client = subprocess.Popen([sys.executable, "-c", CLIENT, trio.address], stdout=subprocess.PIPE)
    assert client.stdout is not None
    with client.stdout as printed:
        assert printed.readline() == b"streaming\n"
        client.kill()
        assert client.wait() == -signal.SIGKILL
    trio.wait_until_idle()


CLIENT = """
import sys, grpc
from baton_proto.v1 import baton_pb2 as pb, baton_pb2_grpc
params = pb.SamplingParams(temperature=0, max_tokens=1900, ignore_eos=True, n=2)
request = pb.GenerateRequest(text="a b c", sampling_params=params)
stub = baton_pb2_grpc.BatonStub(grpc.insecure_channel(sys.argv[1]))
for number, event in enumerate(stub.Generate(request)):
    if number == 8:
        print("streaming", flush=True)
"""
"""Asks for many seconds of work and says when it has begun."""


@pytest.mark.parametrize("begin", [starting, exhaustive(serving)])
def test_children_do_not_outlive_a_launcher_that_is_killed(begin: Any, tmp_path: Path) -> None:
    with begin(tmp_path, *ONE_MIXED, *NO_GRAMMARS) as cluster:
        pid = cluster.process.pid
        until(lambda: len(children_of(pid)) == 2, 30.0, "router and worker")
        with Family(children_of(pid)) as family:
            cluster.process.kill()
            family.wait_until_gone(within_s=20.0)
            assert cluster.process.wait(20.0) == -signal.SIGKILL


def test_a_cluster_that_is_told_to_stop_ends_streams_in_good_order_and_leaves_nothing(trio: Cluster) -> None:
    """The last test of `trio`, which has lost workers by now."""
    folder = trio.log.parent
    with Family(family_of(trio.process.pid)) as family:
        assert family.num_sockets > 0
        stream = trio.stub.Generate(ask("a b c", greedy(1900)))
        for _ in range(3):
            next(stream)
        trio.process.terminate()
        with pytest.raises(grpc.RpcError) as raised:
            list(stream)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert trio.process.wait(STOP_WITHIN_S) == 0
        family.wait_until_gone(within_s=20.0)
    port = int(trio.address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        pass
    assert not list((folder / "cwd").iterdir())
    assert not list((folder / "tmp").iterdir())
    told = trio.log.read_text()
    steps = (
        "router stopping",
        "worker prefill-0 left: the router shuts down",
        "prefill-worker prefill-0 leaving",
    )
    places = [told.rfind(step) for step in steps]
    assert -1 < places[0] < places[1] < places[2]
