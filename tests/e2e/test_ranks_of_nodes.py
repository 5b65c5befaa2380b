"""Ranks over two machines, both of them this one: one leads, `baton serve --headless` follows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from baton import LLM
from baton_core.errors import InvalidConfigError, InvalidModelError, RequestError
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import describe_folder
from baton_engine.models.registry import read_model_config
from baton_worker.rank_process import require_same_model
from baton_worker.ranks.rank_channel import Pools, StartFrame
from bench.processes import free_port
from tests.e2e.calls import answer, ask
from tests.e2e.processes import FLOAT32, NO_GRAMMARS, ONE_MIXED, SMALL, children_of, serving
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("nodes") / "model", "gemma3")


@contextmanager
def following(folder: Path, port: int, *flags: str, code: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """Machine 1, which must end with this exit code; there is a mixed worker, unless flags say otherwise."""
    command = [sys.executable, "-m", "baton", "serve", str(folder), "--headless", "-n", "2", "-r", "1"]
    process = subprocess.Popen([*command, "--master-port", str(port), "-tp", "2", *ONE_MIXED, *flags])
    try:
        yield process
        assert process.wait(30) == code
    finally:
        process.kill()
        process.wait()


def leading(folder: Path, port: int, **changes: Any) -> LLM:
    fields = {"tensor_parallel_size": 2, "nnodes": 2, "master_port": port}
    return LLM.from_engine_args(tiny_args(folder, **{**fields, **changes}))


@pytest.mark.exhaustive
def test_two_machines_give_the_tokens_of_one_process_and_find_each_other_again(folder: Path) -> None:
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        (expected,) = llm.generate([PROMPT], greedy(12), use_tqdm=False)
    port = free_port()
    with following(folder, port) as machine:
        llm = leading(folder, port, cpu_kernels="torch")  # no shared memory, as between two machines
        (found,) = llm.generate([PROMPT], greedy(12), use_tqdm=False)
        assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        (_, own), (_, other) = llm.collective_rpc("tests.integration.asked_functions:process_id")
        assert own == os.getpid()
        assert list(children_of(machine.pid)) == [other]
        os.kill(other, signal.SIGKILL)
        with pytest.raises(RequestError, match=r"rank 1 .* is lost: its machine has closed the connection"):
            llm.generate([PROMPT] * 100, greedy(200), use_tqdm=False)
        llm.close()
        with leading(folder, port) as llm:
            (found,) = llm.generate([PROMPT], greedy(12), use_tqdm=False)
            assert found.outputs[0].token_ids == expected.outputs[0].token_ids


def test_a_machine_with_another_model_is_refused_before_it_reads_weights(folder: Path) -> None:
    config = read_model_config(folder)
    start = StartFrame(
        rank=1,
        settings=EngineSettings(model=str(folder)),
        num_threads=1,
        store=None,
        pools=Pools.OWN,
        description=describe_folder(folder, config),
    )
    require_same_model(start)
    other = replace(start.description, config=(*start.description.config, ("rope_theta", "5")))
    with pytest.raises(InvalidModelError, match=r"model of rank 1 on .*: config\..* as in the leader's"):
        require_same_model(structs.replace(start, description=other))


@pytest.mark.exhaustive
def test_prefill_and_decode_workers_over_two_machines_hand_prompts_over(folder: Path, tmp_path: Path) -> None:
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        (expected,) = llm.generate([PROMPT], greedy(12), use_tqdm=False)
    port, workers = free_port(), ("--mixed", "0", "--prefill-workers", "1", "--decode-workers", "1")
    sizes = ("-tp", "2", "--nnodes", "2", "--master-port", str(port), "--kv-transport", "tcp")
    flags = (*sizes, *workers, *FLOAT32, *NO_GRAMMARS)
    command = (sys.executable, "-m", "baton", "serve", str(folder))
    with (
        following(folder, port, *workers) as machine,
        serving(tmp_path / "leads", *SMALL, *flags, command=command) as cluster,
    ):
        titles = list(children_of(machine.pid).values())
        assert [title for title in titles if title.startswith("baton rank 1")] == ["baton rank 1"] * 2
        ((output,), _) = answer(cluster.stub.Generate(ask(PROMPT, greedy(12)), timeout=60.0))
        assert output.token_ids == expected.outputs[0].token_ids
        log = cluster.log.read_text(encoding="utf-8")
    assert "came over tcp" in log


def test_machines_that_were_started_differently_say_so(folder: Path) -> None:
    port = free_port()
    said = "nnodes is 4 at rank 1; allowed: 2, as at the leader"
    with (
        following(folder, port, "-n", "4", "-tp", "4", code=2),
        pytest.raises(InvalidConfigError, match=said),
    ):
        leading(folder, port)
