"""The wheel with its extras on each Python that it is for: real completions, outside the repository.

`make wheel-check` runs it: each Python takes gigabytes where only torch's CUDA build can be had.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.packaging.installed import ROOT, Installed, make_environment

pytestmark = [
    pytest.mark.skipif("BATON_WHEEL_CHECK" not in os.environ, reason="make wheel-check runs it"),
    pytest.mark.timeout(900),
]
READY_WITHIN_S = 240.0
"""A fresh torch is slow to load: its modules are compiled, and its libraries come from the disk."""
IN_PROCESS = """
from baton import LLM, SamplingParams
greedy = SamplingParams(temperature=0.0, max_tokens=12)
print(LLM().generate("The os module", greedy, use_tqdm=False)[0].outputs[0].text)
"""


@pytest.fixture(scope="module", params=["3.11", "3.12", "3.13"])
def whole(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Router and worker on one Python."""
    folder = tmp_path_factory.mktemp(f"python{request.param}") / "venv"
    installed = make_environment(folder, interpreter(request.param))
    pins = ("--constraint", str(ROOT / "constraints.txt"))
    installed.install(*pins, f"baton[router,worker] @ {wheel.as_uri()}")
    return installed


def interpreter(version: str) -> str:
    """Find it on the path, or where uv knows one; one on the path may be a launcher of others."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
        return found
    uv = Path(sys.executable).with_name("uv")
    known = subprocess.run(
        [uv, "python", "find", "--no-python-downloads", version], cwd="/", capture_output=True, text=True
    )
    if known.returncode:
        pytest.skip(f"python{version} is not installed")
    return known.stdout.strip()


@contextmanager
def serving(installed: Installed) -> Iterator[tuple[dict[str, str], Path]]:
    """`baton serve` of an installed wheel, ready; its addresses and its log."""
    log = installed.cwd / "serve.log"
    read_fd, write_fd = os.pipe()
    flags = ("--port", "0", "--grpc-port", "0", "--report-fd", str(write_fd), "--session-timeout", "10")
    with log.open("w") as file:
        process = subprocess.Popen(
            [installed.folder / "bin" / "baton", "serve", *flags],
            cwd=installed.cwd,
            env=installed.environment,
            stdin=subprocess.DEVNULL,
            stderr=file,
            pass_fds=(write_fd,),
        )
    os.close(write_fd)
    try:
        with os.fdopen(read_fd) as pipe:
            addresses = json.loads(pipe.readline())
        wait_until_ready(f"http://{addresses['http_address']}/health")
        yield addresses, log
    finally:
        process.terminate()
        assert process.wait(60) == 0


def wait_until_ready(url: str) -> None:
    why_not, deadline = "", time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5.0):
                return
        except urllib.error.HTTPError as error:
            why_not = error.read().decode()
            time.sleep(0.2)
    pytest.fail(f"not ready within {READY_WITHIN_S:g} s: {why_not}")


def test_completions_are_served_without_a_warning(whole: Installed) -> None:
    with serving(whole) as (addresses, log):
        asked = ("--temperature", "0", "--max-tokens", "12", "--address", addresses["address"])
        done = whole.baton("complete", "The os module", *asked)
        assert (done.returncode, done.stderr) == (0, "")
        prompt, text, where = done.stdout.strip().splitlines()
        assert prompt == "> The os module"
        assert len(text) > 12
        assert "12 new" in where
    told = log.read_text()
    assert "Traceback" not in told
    assert "Warning" not in told
    alone = whole.run(str(whole.python), "-c", IN_PROCESS, within_s=READY_WITHIN_S)
    assert (alone.returncode, alone.stdout.rstrip("\n")) == (0, text)
    assert "Warning" not in alone.stderr
