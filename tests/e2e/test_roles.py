"""Roles are switched and workers drained by the real command line while requests run: none is lost."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from baton import LLM
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import BATON, FLOAT32, KV_CACHE_BYTES, NO_GRAMMARS, Cluster, serving, until

FLAGS = (
    *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--min-split-tokens", "32"),
    *("--enable-operator-routes", "--api-key", "the-key", *FLOAT32, *NO_GRAMMARS),
)
NUM_CLIENTS = 3
PARAMS = greedy(40)


@dataclass(slots=True)
class Decoders:
    """Workers that decoded the requests which began since `now` was made."""

    now: set[str] = field(default_factory=set)


def admin(cluster: Cluster, *action: str) -> str:
    """Run the command and return its output."""
    command = (*BATON, "admin", *action, "--address", cluster.address, "--api-key", "the-key")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@contextmanager
def load(cluster: Cluster, prompts: list[list[int]], expected: list[list[int]]) -> Iterator[Decoders]:
    """Ask on until the block is left, check every answer, and note where requests were decoded."""
    is_over = threading.Event()
    decoders = Decoders()

    def ask_on(number: int) -> None:
        while not is_over.is_set():
            of_this_time = decoders.now
            call = cluster.stub.Generate(ask(prompts[number], PARAMS))
            (output,), finished = answer(call)
            assert output.token_ids == expected[number]
            of_this_time.add(finished.timings.decode_worker)

    with ThreadPoolExecutor(len(prompts)) as pool:
        clients = [pool.submit(ask_on, number) for number in range(len(prompts))]
        try:
            yield decoders
        finally:
            is_over.set()
    for client in clients:
        client.result()


@pytest.mark.timeout(300)
def test_no_request_is_lost_while_an_operator_switches_roles_and_drains(tmp_path: Path, llm: LLM) -> None:
    prompts = [draw_prompt(60 + 50 * number, seed=number) for number in range(NUM_CLIENTS)]
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    expected = [list(output.outputs[0].token_ids) for output in outputs]
    with serving(tmp_path / "c", *FLAGS) as cluster, load(cluster, prompts, expected) as decoders:
        assert admin(cluster, "set-role", "prefill-0", "mixed") == "prefill-0 is now mixed\n"
        drained = "decode-1 is drained: nothing is open\n"
        assert admin(cluster, "drain", "decode-1", "--wait", "30") == drained
        decoders.now = set()
        until(lambda: len(decoders.now) > 0, 30.0, "a request that began since, and ended")
        assert decoders.now == {"prefill-0"}
        assert {worker.worker_id: worker.is_draining for worker in cluster.info().workers} == {
            "prefill-0": False,
            "decode-1": True,
        }
        assert admin(cluster, "undrain", "decode-1") == "decode-1 takes requests\n"
        assert all(not worker.is_draining for worker in cluster.info().workers)
