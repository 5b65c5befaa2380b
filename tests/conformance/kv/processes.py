"""Producers in processes of their own, and what a test may do to them."""

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

from baton_core.worker.worker_events import BlockPull, Pull
from tests.builders import make_source
from tests.conformance.kv.pairs import PRODUCER

ROOT: Final = Path(__file__).parents[3]


@dataclass
class ProducerProcess:
    process: subprocess.Popen[str]
    epoch: int
    description: bytes
    checksums: list[int]

    def pull_of(self, block_map: Mapping[int, int], pull_id: int = 1) -> Pull:
        """A pull for `block_map` (local block to remote block)."""
        blocks = tuple(
            BlockPull(remote_block_id=remote, local_block_id=local, checksum=self.checksums[remote])
            for local, remote in block_map.items()
        )
        return Pull(pull_id=pull_id, source=make_source(PRODUCER, epoch=self.epoch), blocks=blocks)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def start_producer(
    transport: str,
    epoch: int = 1,
    *,
    cwd: Path = ROOT,
    host: str = "127.0.0.1",
    size: str = "small",
    within: Sequence[str] = (),
) -> Iterator[ProducerProcess]:
    """Start a producer; `within` is a command that runs commands elsewhere."""
    module = ("-m", "tests.conformance.kv.producer_process", transport, str(epoch), host, size)
    with start_python(module, cwd=cwd, within=within) as process:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        yield ProducerProcess(process, epoch, bytes.fromhex(line["description"]), line["checksums"])


@contextmanager
def start_python(
    arguments: Sequence[str], *, cwd: Path = ROOT, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run Python with pipes to its standard input and output; kill it in the end."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*within, sys.executable, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=cwd, env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()
