"""Starts each engine, offline and as a server, with the same settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peer.engine_process import EngineProcess, OfflineEngine
from bench.peer.server import MODEL_NAME, Client, PairClient
from bench.processes import free_port

KV_BYTES: Final = 2**29
ENGINES: Final = ("baton", "vllm", "transformers")
RUN_WITHIN_S: Final = 900.0
PAIR_CONFIG: Final = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Starts them."""

    model: Path
    peer_folder: Path
    """Made by make_environment.sh."""
    dtype: str
    logs: Path

    def offline(self, engine: str, *more: str, bound: Mapping[str, str] | None = None) -> OfflineEngine:
        """Start an engine in a process, with `more` flags; `bound` replaces vLLM's binding of threads."""
        command = [*self.python(engine), "-m", "bench.peer.offline_engine", "--engine", engine]
        command += ["--model", str(self.model), "--dtype", self.dtype, "--kv-bytes", str(KV_BYTES)]
        command += more
        environment = self.environment(engine) | (bound or {})
        log = self._log(f"{engine}-offline")
        return OfflineEngine(engine, command, log=log, environment=environment)

    def environment(self, engine: str) -> dict[str, str]:
        """Variables of an engine that has all cores."""
        return self._vllm_environment(sorted(os.sched_getaffinity(0))) if engine == "vllm" else {}

    def serve(self, engine: str, *more: str) -> tuple[list[EngineProcess], Client]:
        """Start a server of one engine with all cores, and with `more` flags."""
        port = free_port()
        if engine == "baton":
            one = ("--mixed", "1", "--prefill-workers", "0", "--decode-workers", "0")
            process = self._baton_server(port, *one, *more)
        else:
            process = self._vllm_server("vllm-serve", port, sorted(os.sched_getaffinity(0)), *more)
        return [process], Client(port, RUN_WITHIN_S)

    def serve_pair(self, engine: str) -> tuple[list[EngineProcess], Client | PairClient]:
        """Start a server that computes prompts and one that decodes.

        Of vLLM's each has half of the cores: its threads spin. Baton shares cores out itself.
        """
        if engine == "baton":
            port = free_port()
            return [self._baton_server(port, "--split", "always")], Client(port, RUN_WITHIN_S)
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        processes, clients = [], []
        for name, own in (("prefill", cores[:half]), ("decode", cores[half:])):
            port = free_port()
            side_channel = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
            flags = ["--kv-transfer-config", json.dumps(PAIR_CONFIG)]
            processes.append(self._vllm_server(f"vllm-{name}", port, own, *flags, **side_channel))
            clients.append(Client(port, RUN_WITHIN_S))
        return processes, PairClient(*clients)

    def _baton_server(self, port: int, *more: str) -> EngineProcess:
        flags = [*self._server_flags(port), "--grpc-port", "0", *more]
        command = [sys.executable, "-m", "baton", "serve", str(self.model), *flags]
        return EngineProcess("baton", command, log=self._log("baton-serve"), environment={})

    def _vllm_server(
        self, name: str, port: int, cores: Sequence[int], *more: str, **variables: str
    ) -> EngineProcess:
        flags = [*self._server_flags(port), *more]
        command = [str(self._peer), "vllm", "serve", str(self.model), *flags]
        environment = {**self._vllm_environment(cores), **variables}
        return EngineProcess(name, command, log=self._log(name), environment=environment)

    def _server_flags(self, port: int) -> list[str]:
        flags = ["--dtype", self.dtype, "--kv-cache-memory-bytes", str(KV_BYTES)]
        return [*flags, "--port", str(port), "--served-model-name", MODEL_NAME]

    @property
    def _peer(self) -> Path:
        return self.peer_folder / "bin" / "peer"

    def python(self, engine: str) -> list[str]:
        """The interpreter of an engine's environment."""
        return [str(self._peer), "python"] if engine == "vllm" else [sys.executable]

    def _vllm_environment(self, cores: Sequence[int]) -> dict[str, str]:
        bound = ",".join(str(core) for core in cores)
        return {"VLLM_CPU_OMP_THREADS_BIND": bound, "VLLM_CACHE_ROOT": str(self.peer_folder / "cache")}

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"
