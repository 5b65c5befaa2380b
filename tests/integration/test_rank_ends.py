"""The ranks of an `LLM` outlive an interrupt, and end with it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton import LLM
from baton.executors import in_process_executor
from baton_core.errors import InvalidConfigError
from baton_engine.sampling.sampler import Sampler
from baton_engine.steps.runner import ModelRunner
from baton_service.process import child_environment, module_command
from baton_worker.engine.resident_engine import ResidentEngine
from tests.e2e.processes import children_of, until
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args


def tokens(llm: LLM) -> list[int]:
    (output,) = llm.generate([PROMPT], greedy(8), use_tqdm=False)
    return output.outputs[0].token_ids


def interrupted(method: Any) -> Any:
    """Return a method during which Ctrl-C comes."""

    def interrupt(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return method(*args)

    return interrupt


def require_no_ranks() -> None:
    until(lambda: not children_of(os.getpid()), 10.0, "end of the other ranks")
    assert "ranks" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str)
def test_ranks_outlive_an_interrupt_and_end_with_the_llm(
    sizes: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM.from_engine_args(tiny_args(folder, **sizes))
    expected = tokens(llm)
    calls: tuple[tuple[type, str, Callable[[LLM], object]], ...] = (
        (Sampler, "sample", tokens),
        (ModelRunner, "_compute", tokens),
        (ResidentEngine, "sleep", LLM.sleep),
    )
    for of_class, name, call in calls:
        with monkeypatch.context() as patch:
            patch.setattr(of_class, name, interrupted(getattr(of_class, name)))
            with pytest.raises(KeyboardInterrupt):
                call(llm)
        llm.wake_up()
        assert tokens(llm) == expected
    del llm
    gc.collect()
    require_no_ranks()


def test_ranks_end_with_a_constructor_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise InvalidConfigError("on purpose")

    monkeypatch.setattr(in_process_executor, "cache_followers", fail)
    with pytest.raises(InvalidConfigError, match="on purpose") as raised:
        LLM.from_engine_args(tiny_args(folder, tensor_parallel_size=2))
    require_no_ranks()
    del raised


def test_a_rank_ends_with_its_leader_also_while_others_hold_the_channel() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        started = subprocess.Popen(
            [
                *module_command("baton_worker.rank_process"),
                *("--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getppid())),
            ],
            pass_fds=[theirs.fileno()],
            env=child_environment(),
        )
        assert started.wait(60.0) == 1
