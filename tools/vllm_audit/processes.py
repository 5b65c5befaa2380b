"""Processes that probes share: one where `vllm` is Baton, and one server that is started as vLLM's."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from baton import LLM, SamplingParams
from bench.processes import free_port
from tests.quantized_reference import copy_with_tokenizer
from tools.vllm_audit.subjects import MODEL, expect, folder
from tools.vllm_audit.tied_command import tied

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parents[1]
_WITHIN_S: Final = 300.0
_POLL_S: Final = 0.2
MODEL_ID: Final = "facebook/opt-125m"
"""The id that vLLM's examples name; a folder of this name lies where they run."""
QUARK_ID: Final = "amd/Llama-3.1-8B-Instruct-FP8-KV"
"""The id of a checkpoint that quark has quantized, KV cache included; a small one lies there too."""
UNREAD_VARIABLES: Final = ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_RAY_DP_PACK_STRATEGY")


def as_vllm(*words: str) -> list[str]:
    """The command line of a command in whose processes `vllm` is Baton."""
    return [sys.executable, "-m", "baton", "as-vllm", *words]


def run(words: Sequence[str], given: str = "", **variables: str) -> str:
    """Run a command to its end where the examples' model lies; returns what it prints.

    Raises:
        OSError: it fails; the message is the last line that it prints.
    """
    done = subprocess.run(
        tied(words),
        check=False,
        input=given,
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        cwd=_place(),
        env=_environment(**variables),
    )
    if done.returncode:
        raise OSError(_last_line(done.stderr or done.stdout))
    return done.stdout


@cache
def outcomes(imports: tuple[tuple[str, str], ...], files: tuple[str, ...]) -> Mapping[str, list[str | None]]:
    """The errors of imports and of files of `snippets/` in one process where `vllm` is Baton, or None."""
    paths = [str(_HERE / "snippets" / name) for name in files]
    asked = json.dumps({"imports": imports, "files": paths})
    script = str(_HERE / "in_alias.py")
    printed = run(as_vllm("python", script), asked)
    return json.loads(printed.strip().splitlines()[-1])  # type: ignore[no-any-return]


class Server:
    """A server's process, its address, and its log. It ends with this process, also when that is killed."""

    def __init__(self, words: Sequence[str], port: int, **variables: str) -> None:
        """Start it, and wait until it serves.

        Raises:
            OSError: it ends before; the message is the last line that it prints.
        """
        self.port = port
        self.log = folder() / f"server-{port}.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                tied(words), stdout=log, stderr=log, cwd=_place(), env=_environment(**variables)
            )
        atexit.register(self.close)
        deadline = time.monotonic() + _WITHIN_S
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise OSError(_last_line(self.log.read_text()))
            if time.monotonic() > deadline:
                raise OSError(f"it does not serve: {_last_line(self.log.read_text())}")
            time.sleep(_POLL_S)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of an answer; that of a stream as a list of its chunks."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        if body is None or not body.get("stream"):
            return json.loads(text)
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_on_all_interfaces(self) -> bool:
        """Return whether another address of this machine than the usual one is answered at."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.2:{self.port}/health", timeout=10):
                return True
        except urllib.error.URLError:
            return False

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except OSError:
            return False


def started(*words: str, **variables: str) -> Server:
    """A server that a command starts on a free port, with little memory."""
    port = free_port()
    flags = ["--port", str(port), "--dtype", "float32", "--kv-cache-memory-bytes", "32M"]
    return Server(as_vllm(*words, *flags), port, **variables)


@cache
def server() -> Server:
    """`vllm serve`, with flags and variables that vLLM documents."""
    names = ["--served-model-name", "audited", "--max-model-len", "1024", "--tensor-parallel-size", "1"]
    return started("vllm", "serve", MODEL_ID, *names, **dict.fromkeys(UNREAD_VARIABLES, "1"))


@cache
def _place() -> Path:
    """The folder where the models of the examples lie."""
    shutil.copytree(MODEL, folder() / MODEL_ID)
    copy_with_tokenizer("quark-fp8-kv-fp8", folder() / QUARK_ID)
    return folder()


def _environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **variables}


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "it prints nothing")


@cache
def two_machines() -> str:
    """A model whose ranks are of two machines, one of them a process that this one starts, has both."""
    port = free_port()
    flags = ("-tp", "2", "-n", "2", "-r", "1", "--master-port", str(port), "--headless")
    one_mixed = ("--prefill-workers", "0", "--decode-workers", "0", "--mixed", "1")
    machine = subprocess.Popen([sys.executable, "-m", "baton", "serve", MODEL, *flags, *one_mixed])
    try:
        with LLM(MODEL, tensor_parallel_size=2, nnodes=2, master_port=port) as llm:
            expect(llm.get_world_size() == 2, f"get_world_size() is {llm.get_world_size()}")
            generate = llm.generate("The os module", SamplingParams(max_tokens=2), use_tqdm=False)
            expect(len(generate[0].outputs[0].token_ids) == 2, "no tokens")
        expect(machine.wait(_WITHIN_S) == 0, f"machine 1 ends with {machine.returncode}")
    finally:
        machine.kill()
        machine.wait()
    return "two machines compute together"
