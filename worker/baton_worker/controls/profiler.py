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
from baton_core.ranks.rank_layout import RankPlace
from baton_engine.ranks.ranks import ALONE

_is_tracing: Final = threading.Lock()
"""Held from start to stop: torch has one profiler in a process."""


class Profiler:
    """At most one trace at a time, in the whole process. Start and stop it on the thread that computes.

    The names of traces have the rank as vLLM's do; the process tells workers apart.
    """

    def __init__(self, place: RankPlace = ALONE.place) -> None:
        self._rank = f"dp0_pp{place.stage}_tp{place.tensor_rank}"
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
        name = f"{prefix or 'baton'}_{self._rank}.{os.getpid()}.{time.time_ns()}.pt.trace.json"
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
