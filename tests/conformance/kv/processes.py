"""Holders in processes of their own, and what a test may do to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton_kv.connector import BlockCopy, PullOrder
from tests.conformance.kv.pairs import HOLDER

ROOT: Final = Path(__file__).parents[3]


@dataclass
class HolderProcess:
    process: subprocess.Popen[str]
    epoch: int
    description: bytes
    checksums: list[int]

    def order(self, block_map: Mapping[int, int], pull_id: int = 1) -> PullOrder:
        """An order for `block_map` (local block to remote block)."""
        copies = tuple(
            BlockCopy(remote_block_id=remote, local_block_id=local, checksum=self.checksums[remote])
            for local, remote in block_map.items()
        )
        return PullOrder(pull_id=pull_id, source=HOLDER, epoch=self.epoch, copies=copies)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def start_holder(
    transport: str,
    epoch: int = 1,
    *,
    cwd: Path = ROOT,
    host: str = "127.0.0.1",
    size: str = "small",
    within: Sequence[str] = (),
) -> Iterator[HolderProcess]:
    """Start a holder; `within` is a command that runs commands elsewhere."""
    module = ("-m", "tests.conformance.kv.holder_process", transport, str(epoch), host, size)
    with start_python(module, cwd=cwd, within=within) as process:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        yield HolderProcess(process, epoch, bytes.fromhex(line["description"]), line["checksums"])


@contextmanager
def start_python(
    arguments: Sequence[str], *, cwd: Path = ROOT, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run Python with pipes to its standard input and output; kill it in the end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*within, sys.executable, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=cwd, env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()
