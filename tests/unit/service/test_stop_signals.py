"""The first signal of each kind asks a process to end in good order, and so may the end of standard input."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from baton_service.stop_signals import TERMINAL_SIGNALS

CODE = """
import asyncio, os, signal
from baton_service.stop_signals import on_first_signal
{setup}

async def run() -> None:
    asked = asyncio.Event()
    with on_first_signal(asked.set):
        signal.raise_signal({first})
        await asked.wait()
        print("asked", flush=True)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(10)

asyncio.run(run())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, *TERMINAL_SIGNALS])
def test_the_first_signal_asks_and_the_second_one_ends_the_process(number: signal.Signals) -> None:
    assert run(CODE.format(first=int(number), setup="")) == ("asked\n", -signal.SIGTERM)


FOLLOWING = "from baton_service.stop_signals import leave_to_parent; leave_to_parent()"


def test_a_process_of_a_launcher_stops_in_good_order_though_it_is_signalled_twice() -> None:
    code = CODE.format(first=int(signal.SIGTERM), setup=FOLLOWING)
    assert run(code.replace("await asyncio.sleep(10)", "print('goes on')")) == ("asked\ngoes on\n", 0)


AS_PID_1 = "import os; os.getpid = lambda: 1"
LOADING_CODE = """
import signal, sys

class Finder:
    def find_spec(name, path, target=None):
        if name == "baton.cli":
            print("asyncio" in sys.modules, flush=True)
            signal.raise_signal(signal.SIGTERM)

sys.meta_path.insert(0, Finder)
from baton.__main__ import main
main(["--help"])
"""


def test_signals_end_the_first_process_of_a_container_which_the_kernel_does_not() -> None:
    assert run(CODE.format(first=int(signal.SIGTERM), setup=AS_PID_1)) == ("asked\n", 128 + signal.SIGTERM)
    assert run(AS_PID_1 + LOADING_CODE) == ("False\n", 128 + signal.SIGTERM)


def run(code: str) -> tuple[str, int]:
    """Return the output and the exit code of a process."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return ended.stdout, ended.returncode


STDIN_CODE = """
import asyncio
from baton_service.process import run_until_signal

async def work() -> None:
    print("begun", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)
        print("ended", flush=True)

print(asyncio.run(run_until_signal(work(), ends_with_stdin=True)))
"""


def test_of_standard_input_only_its_end_counts_and_lets_the_work_end() -> None:
    command = [sys.executable, "-c", STDIN_CODE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.stdin.write("only its end counts\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.stdin.close()
        assert process.stdout.read() == "ended\nNone\n"
        assert process.wait(60) == 0


def test_a_signal_and_the_end_of_standard_input_together_let_the_work_end() -> None:
    command = [sys.executable, "-c", STDIN_CODE.replace("0.1", "1")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ("ended\nNone\n", None)
        assert process.returncode == 0
