"""Traces what this process computes, with torch's profiler, for Perfetto or Chrome's trace viewer."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from baton_core.errors import InvalidRequestError

_RANKS: Final = "dp0_pp0_tp0"
"""The ranks of a worker as vLLM's names of traces have them; the process tells workers apart."""
_is_tracing: Final = threading.Lock()
"""Held from start to stop: torch has one profiler in a process."""


class Profiler:
    """At most one trace at a time, in the whole process. Start and stop it on the thread that computes."""

    def __init__(self) -> None:
        self._profile: profile | None = None
        self._path = Path()

    def start(self, folder: str, prefix: str) -> None:
        """Begin a trace that `stop` writes into `folder`.

        Raises:
            InvalidRequestError: no folder is given, it cannot be made, or a trace has begun already.
        """
        allowed = 'a folder, as profiler_config={"torch_profiler_dir": ...} gives it'
        if not folder:
            raise InvalidRequestError("torch_profiler_dir", folder, allowed)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequestError("torch_profiler_dir", folder, f"{allowed} ({error})") from error
        if not _is_tracing.acquire(blocking=False):
            raise InvalidRequestError("start_profile", "called again", "stop_profile first")
        name = f"{prefix or 'baton'}_{_RANKS}.{os.getpid()}.{time.time_ns()}.pt.trace.json"
        self._path = Path(folder) / name
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()

    def stop(self) -> str:
        """End the trace; returns the file it is in.

        Raises:
            InvalidRequestError: no trace has begun.
        """
        if self._profile is None:
            raise InvalidRequestError("stop_profile", "called", "start_profile first")
        ended, self._profile = self._profile, None
        try:
            ended.stop()
            ended.export_chrome_trace(str(self._path))
        finally:
            _is_tracing.release()
        return str(self._path)
