from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from baton_sandbox.bounded_processes import (
    BoundedProcesses,
    ProcessesUnavailableError,
    TaskEndedError,
    TaskFailedError,
)
from baton_sandbox.process_limits import ProcessLimits

pytestmark = pytest.mark.slow

TASKS: Final = "tests.unit.sandbox.tasks:make"
LIMITS: Final = ProcessLimits(cpu_s=1.0, wall_s=60.0, memory_bytes=256 << 20, num_tasks=1000)


@dataclass
class _Runner:
    """Runs the tasks of a test, all within the same limits."""

    processes: BoundedProcesses
    limits: ProcessLimits

    def __call__(self, name: str, argument: object = None) -> str:
        return self.processes.run(json.dumps([name, argument]).encode(), self.limits).decode()


Make = Callable[..., _Runner]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[BoundedProcesses] = []

    def make_processes(target: str = TASKS, **changes: Any) -> _Runner:
        settings = {"prefix": "> "} if target == TASKS else {}
        made.append(BoundedProcesses(target, settings))
        return _Runner(made[-1], replace(LIMITS, **changes))

    yield make_processes
    for processes in made:
        processes.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"{pids} are not all gone"
        time.sleep(0.01)


def test_a_process_does_tasks_with_the_settings_it_was_given(make: Make) -> None:
    run = make()
    assert run.processes.fork_server_pid is None
    assert run("echo", "a") == "> a"
    assert run("pid") == run("pid")


def test_a_fork_of_the_owner_ends_none_of_them(make: Make) -> None:
    run = make()
    assert run("echo", "a") == "> a"
    fork_server_pid = run.processes.fork_server_pid
    if (pid := os.fork()) == 0:
        run.processes.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert run("echo", "b") == "> b"
    assert run.processes.fork_server_pid == fork_server_pid


@pytest.mark.parametrize("name", ["spin", "hold"])
def test_a_task_that_takes_more_processor_time_is_ended_and_the_next_has_a_fresh_process(
    make: Make, name: str
) -> None:
    run = make()
    before = run("pid")
    with pytest.raises(TaskEndedError, match=r"more than 1 s of processor time, 60 s and 256 MiB"):
        run(name)
    assert run("pid") != before
    wait_until_gone(int(before.removeprefix("> ")))


def test_a_task_that_only_waits_is_ended_too(make: Make) -> None:
    with pytest.raises(TaskEndedError) as error:
        make(wall_s=0.3)("sleep", 3600)
    assert error.value.is_overdue


def test_a_task_that_takes_more_memory_is_ended(make: Make) -> None:
    run = make()
    assert run("allocate", 32 << 20) == f"> {32 << 20}"
    with pytest.raises(TaskEndedError):
        run("allocate", 1 << 30)
    assert run("echo", 1) == "> 1"


def test_a_task_whose_process_breaks_ends_alone(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    run = make()
    with pytest.raises(TaskEndedError):
        run("abort")
    with pytest.raises(TaskFailedError, match="ValueError: no such value"):
        run("fail", "no such value")
    assert run("print", "a stranger's words") == "> 18"
    assert capfd.readouterr() == ("", "")


def test_a_process_does_as_many_tasks_as_it_may(make: Make) -> None:
    run = make(num_tasks=2)
    pids = [run("pid") for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    single = make(num_tasks=1)
    assert single("pid") != single("pid")


def test_tasks_see_no_secrets_and_yield_to_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_API_KEY", "secret")
    run = make(niceness=7)
    assert "BATON_API_KEY" not in run("environment")
    assert int(run("niceness").removeprefix("> ")) == min(19, os.nice(0) + 7)


def test_a_fork_server_that_is_gone_is_replaced(make: Make) -> None:
    run = make(num_tasks=1)
    run("pid")
    gone = run.processes.fork_server_pid
    assert gone is not None
    os.kill(gone, 9)
    wait_until_gone(gone)
    assert run("echo", 1) == "> 1"
    assert run.processes.fork_server_pid != gone


def test_a_target_that_cannot_be_loaded_fails_each_task_by_name(make: Make) -> None:
    for target, reason in (
        ("tests.unit.sandbox.tasks:broken", "ValueError: its settings are wrong"),
        ("no.such:module", "ModuleNotFoundError"),
    ):
        with pytest.raises(TaskFailedError, match=reason):
            make(target)("echo")


def test_closing_ends_all_processes_and_the_tasks_they_are_at(make: Make) -> None:
    run = make(cpu_s=600.0, wall_s=600.0)
    pid = int(run("pid").removeprefix("> "))
    server = run.processes.fork_server_pid
    assert server is not None
    errors: list[BaseException] = []

    def spin() -> None:
        try:
            run("spin")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=spin)
    thread.start()
    while cpu_ticks(pid) < 5:  # it is at the task
        time.sleep(0.01)
    run.processes.close()
    thread.join(60)
    assert [type(error) for error in errors] == [ProcessesUnavailableError]
    wait_until_gone(pid, server)
    with pytest.raises(ProcessesUnavailableError):
        run("echo")


def cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


OWNER: Final = """
import json, threading, time
from baton_sandbox.bounded_processes import BoundedProcesses
from baton_sandbox.process_limits import ProcessLimits
limits = ProcessLimits(cpu_s=600.0, wall_s=600.0, memory_bytes=256 << 20, num_tasks=9)
processes = BoundedProcesses("tests.unit.sandbox.tasks:make", {"prefix": ""})
pid = processes.run(json.dumps(["pid", None]).encode(), limits).decode()
threading.Thread(target=processes.run, args=(json.dumps(["spin", None]).encode(), limits)).start()
print(processes.fork_server_pid, pid, flush=True)
time.sleep(600)
"""


def test_all_processes_end_with_an_owner_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert owner.stdout is not None
        with owner.stdout as out:
            server, pid = map(int, out.readline().split())
        while cpu_ticks(pid) < 5:
            time.sleep(0.01)
    finally:
        owner.kill()
        owner.wait()
    wait_until_gone(server, pid)
