"""Faults that broke other systems, done to one cluster: it says what it waits for, and goes on.

Each test leaves the cluster as it was: both workers there, every block free.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from baton import LLM, StructuredOutputsParams
from baton_proto.v1 import baton_pb2 as pb
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import BRISK, FLOAT32, Cluster, serving, until

FLAGS = (
    *("--split", "always", "--queue-timeout", "100"),
    *("--max-num-batched-tokens", "2", "--kv-cache-memory-bytes", str(2**24)),
)
"""Long prompts take longer than from one heartbeat to the next, even on a fast machine; few fit at once."""
LONG = 800
"""Tokens of a prompt: hundreds of steps."""
PARAMS = greedy(12)
GIVEN_UP_WITHIN_S = 40.0
"""From a worker's silence until nobody keeps anything for it; as long as a pull waits for its producer."""
REFUSED_WITHIN_S = 30.0
"""At once, and not after the time that requests wait for a worker."""
BACK_WITHIN_S = 40.0
NUM_AT_ONCE = 8


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A prefill worker and a decode worker, both needed by every request of some tokens."""
    with serving(tmp_path_factory.mktemp("pair"), *FLAGS, *FLOAT32, *BRISK) as cluster:
        yield cluster


def ask_long(number: int) -> pb.GenerateRequest:
    """One that takes long to prefill; each number has a prompt that nobody has cached."""
    return ask(draw_prompt(LONG, seed=number), PARAMS)


def expect_long(llm: LLM, number: int) -> list[int]:
    (output,) = llm.generate(draw_prompt(LONG, seed=number), PARAMS, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def hand_over(pair: Cluster, number: int) -> Any:
    """Begin such a request, and wait until its blocks are on their way; the call."""
    call = pair.stub.Generate(ask_long(number))
    until(lambda: num_kept_blocks(pair, "decode-1") > 0, 30.0, "blocks reserved at the decode worker")
    return call


def num_kept_blocks(pair: Cluster, worker_id: str) -> int:
    """Blocks that a worker cannot give to anybody."""
    (worker,) = (worker for worker in pair.info().workers if worker.worker_id == worker_id)
    return worker.num_blocks - worker.num_available_blocks


def tokens_of(call: Any) -> list[int]:
    (output,), _ = answer(call)
    return list(output.token_ids)


def end_of(call: Any) -> list[int] | str:
    """A request's tokens, or its error."""
    try:
        return tokens_of(call)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"


def wait_until_as_before(pair: Cluster) -> None:
    until(lambda: len(pair.info().workers) == 2, BACK_WITHIN_S, "the worker again")
    pair.wait_until_idle()


def test_the_log_says_how_fast_blocks_came_and_what_was_to_be_expected(pair: Cluster) -> None:
    assert tokens_of(pair.stub.Generate(ask(draw_prompt(100, seed=8), PARAMS)))
    told = r"first blocks of worker prefill-0 came over shared_memory: "
    figures = r"[\d.]+ MiB in [\d.]+ ms, [\d.]+ GB/s; this machine's best .* is [\d.]+ GB/s\n"
    until(lambda: re.search(told + figures, pair.log.read_text()) is not None, 10.0, told + figures)


def test_a_holder_that_falls_silent_costs_its_puller_no_block(pair: Cluster, llm: LLM) -> None:
    expected = expect_long(llm, 1)
    (pid,) = pair.pids_of("baton prefill-worker")
    call = hand_over(pair, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: num_kept_blocks(pair, "decode-1") == 0, GIVEN_UP_WITHIN_S, "all blocks free")
        until(lambda: len(pair.info().workers) == 1, GIVEN_UP_WITHIN_S, "the router's giving up, too")
        began_s = time.monotonic()
        error = str(end_of(pair.stub.Generate(ask(draw_prompt(100, seed=7), PARAMS))))
        assert time.monotonic() - began_s < REFUSED_WITHIN_S
        assert error.startswith("UNAVAILABLE: no prefill worker is registered")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert tokens_of(call) == expected
    wait_until_as_before(pair)


def test_a_holder_that_starts_again_harms_no_puller(pair: Cluster, llm: LLM) -> None:
    """It has the same name, and its blocks lie elsewhere."""
    expected = expect_long(llm, 2)
    (prefill,), (decode,) = pair.pids_of("baton prefill-worker"), pair.pids_of("baton decode-worker")
    call = hand_over(pair, 2)
    os.kill(prefill, signal.SIGKILL)
    lost = "UNAVAILABLE: worker prefill-0 was lost: "
    end = end_of(call)
    assert end == expected or str(end).startswith(lost), (
        "an error only if starting takes longer than the wait"
    )
    wait_until_as_before(pair)
    assert pair.pids_of("baton decode-worker") == [decode]
    assert tokens_of(pair.stub.Generate(ask_long(2))) == expected


def test_a_refusal_by_one_worker_ends_the_wait_at_the_other(pair: Cluster) -> None:
    choice = StructuredOutputsParams(choice=("yes",))
    params = greedy(12, structured_outputs=choice, allowed_token_ids=(5,))
    request = ask(draw_prompt(300, seed=6), params)
    began_s = time.monotonic()
    error = str(end_of(pair.stub.Generate(request)))
    assert time.monotonic() - began_s < REFUSED_WITHIN_S
    assert error.startswith("INVALID_ARGUMENT: ")
    assert "allowed_token_ids" in error
    pair.wait_until_idle()


def test_a_client_that_leaves_before_decoding_begins_leaves_nothing(pair: Cluster) -> None:
    for number in (3, 4, 5):
        hand_over(pair, number).cancel()
        pair.wait_until_idle()


@pytest.mark.exhaustive
def test_more_than_the_decode_worker_can_hold_stalls_nobody(pair: Cluster, llm: LLM) -> None:
    prompts = [draw_prompt(600, seed=10 + number) for number in range(NUM_AT_ONCE)]
    (num_blocks,) = {worker.num_blocks for worker in pair.info().workers}
    assert num_blocks < NUM_AT_ONCE * -(-600 // 32)
    expected = [output.outputs for output in llm.generate(prompts, PARAMS, use_tqdm=False)]
    with ThreadPoolExecutor(NUM_AT_ONCE) as clients:
        ends = clients.map(lambda prompt: answer(pair.stub.Generate(ask(prompt, PARAMS))), prompts)
    assert [outputs for outputs, _ in ends] == expected
    pair.wait_until_idle()
