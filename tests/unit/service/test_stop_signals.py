"""The first signal of each kind asks a process to end in good order."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from baton_service.stop_signals import TERMINAL_SIGNALS

CODE = """
import asyncio, os, signal
from baton_service.stop_signals import on_first_signal

async def run() -> None:
    asked = asyncio.Event()
    with on_first_signal(asked.set):
        os.kill(os.getpid(), {first})
        await asked.wait()
        print("asked", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(10)

asyncio.run(run())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, *TERMINAL_SIGNALS])
def test_the_first_signal_asks_and_the_second_one_ends_the_process(number: signal.Signals) -> None:
    code = CODE.format(first=int(number))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == ("asked\n", -signal.SIGTERM), ended.stderr
