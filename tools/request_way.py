"""The way of a request from HTTP to the scheduler: the files that it passes, and the types that hold it.

    python -m tools.request_way [--path /v1/chat/completions] [--requests 5]

Starts a router and a worker with the bundled model in this process and sends the same kind of request several
times. From the HTTP application to `Scheduler.add` it notes every function of the packages that is given the
request: an argument of it, a struct, a dataclass or a message, holds the request's seed. A file counts if
each of the requests passes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
from google.protobuf.message import Message

from baton.config.engine_args import BUNDLED_MODEL
from baton_core.sessions.worker_info import Role
from baton_engine.engine_settings import EngineSettings
from baton_engine.sizing import KVCacheSettings
from baton_router.main import RouterServer
from baton_router.process.router_settings import RouterSettings
from baton_worker.core.scheduler import Scheduler
from baton_worker.worker_process import WorkerSettings, _serve

ROOT: Final = str(Path(__file__).parents[1])
FIRST: Final = "__call__"
"""Function of the HTTP application with which a request begins."""
FIRST_FILE: Final = "http/endpoint.py"
FIRST_SEED: Final = 771_201_400
"""A number that occurs nowhere else."""
BODIES: Final = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Write a list"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "def main(", "max_tokens": 2},
}


def holds(value: object, seed: int, depth: int = 4) -> bool:
    """Say whether a value is the seed, or data that contains it."""
    if isinstance(value, int):
        return value == seed
    if not depth or isinstance(value, str | bytes | float | None):
        return False
    if isinstance(value, tuple | list):
        return any(holds(one, seed, depth - 1) for one in value[:4])
    if isinstance(value, dict):
        return any(holds(one, seed, depth - 1) for one in value.values())
    if isinstance(value, Message):
        return any(holds(one, seed, depth - 1) for _, one in value.ListFields())
    if isinstance(value, msgspec.Struct):
        return any(holds(getattr(value, name), seed, depth - 1) for name in value.__struct_fields__)
    if is_dataclass(value):
        names = (field.name for field in fields(value))
        return any(holds(getattr(value, name, None), seed, depth - 1) for name in names)
    return False


class Recorder:
    """Notes functions by file while a request is on its way; called by the interpreter for every call."""

    def __init__(self) -> None:
        self.ways: list[dict[str, str]] = []
        """For each request, the function that it enters each file by."""
        self.types: dict[str, None] = {}
        """Types that hold a request, in the order of their first use."""
        self.is_ready = False
        """Set once the cluster serves: what is asked before that is no request."""
        self._is_on = False

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = code.co_filename
        if not name.startswith(ROOT) or "/baton" not in name or "/.venv/" in name or "_pb2" in name:
            return
        if self.is_ready and not self._is_on and code.co_name == FIRST and name.endswith(FIRST_FILE):
            self._is_on = True
            self.ways.append({})
        is_end = code is Scheduler.add.__code__
        if not self._is_on or not (is_end or self._is_given_request(frame)):
            return
        file = name.removeprefix(f"{ROOT}/")
        self.ways[-1].setdefault(file, f"{file}:{code.co_firstlineno} {code.co_qualname}")
        self._is_on = not is_end

    def _is_given_request(self, frame: FrameType) -> bool:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        seed = FIRST_SEED + len(self.ways) - 1
        given = [value for name in names if holds(value := frame.f_locals.get(name), seed)]
        self.types |= dict.fromkeys(
            type(value).__name__ for value in given if not isinstance(value, tuple | list | int)
        )
        return bool(given)


async def trace(path: str, num_requests: int) -> Recorder:
    """Serve some requests one after another and return what was noted."""
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    router = RouterServer(RouterSettings(model=BUNDLED_MODEL, port=0, grpc_port=0, shutdown_timeout_s=0.0))
    await router.start()
    engine = EngineSettings(model=BUNDLED_MODEL, kv_cache=KVCacheSettings(kv_cache_memory_bytes=2**26))
    settings = WorkerSettings(role=Role.MIXED, engine=engine, routers=(f"127.0.0.1:{router.grpc_port}",))
    worker = asyncio.create_task(_serve(settings))
    try:
        url = f"http://127.0.0.1:{router.http_port}"
        for _ in range(600):
            if await asyncio.to_thread(_status, f"{url}/health") == 200:
                break
            await asyncio.sleep(0.1)
        recorder.is_ready = True
        for number in range(num_requests):
            body = {**BODIES[path], "seed": FIRST_SEED + number}
            assert await asyncio.to_thread(_status, url + path, body) == 200
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await router.stop()
    return recorder


def passed_files(recorder: Recorder) -> list[str]:
    """Return the files that every request has passed, in the order of the first one."""
    first, *others = (way for way in recorder.ways if way)  # the profiler sees calls after the last, too
    return [file for file in first if all(file in way for way in others)]


def _status(url: str, body: Any = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def main() -> None:
    """Print the files that every request passes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", choices=sorted(BODIES), default="/v1/chat/completions")
    parser.add_argument("--requests", type=int, default=5)
    args = parser.parse_args()
    recorder = asyncio.run(trace(args.path, args.requests))
    passed = passed_files(recorder)
    print("\n".join(recorder.ways[0][file] for file in passed))
    print(f"{len(passed)} files")
    print(f"{len(recorder.types)} types: {', '.join(recorder.types)}")


if __name__ == "__main__":
    main()
