"""A cluster of processes on this machine for `LLM`: started with it, ended with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.launcher import STOP_WITHIN_S
from baton.worker_process import WorkerSettings
from baton_core.errors import STATUS, ErrorCode, RequestError
from baton_core.router_messages import RequestSpec
from baton_core.sampling_params import SamplingParams
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub

MAX_CALLS = 128
"""Requests that are open at the router at a time."""
_READY_WITHIN_S = 300.0


class SpawnedCluster:
    """`baton serve` as a child process that ends when this process does."""

    def __init__(self, settings: WorkerSettings, num_prefill_workers: int, num_decode_workers: int) -> None:
        """Start it and wait until it is ready.

        Raises:
            RequestError: it did not become ready; its own message is on stderr.
        """
        read_fd, write_fd = os.pipe()
        workers = ("--prefill-workers", num_prefill_workers, "--decode-workers", num_decode_workers)
        ends = ("--port", 0, "--report-fd", write_fd, "--exit-with-stdin", "--log-level", "warning")
        command = [sys.executable, "-m", "baton", "serve", *_flags(settings), *map(str, (*workers, *ends))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(write_fd,))
        os.close(write_fd)
        with os.fdopen(read_fd) as pipe:
            line = pipe.readline()
        if not line:
            code = self._process.wait(STOP_WITHIN_S)
            raise RequestError(ErrorCode.UNAVAILABLE, f"baton serve ended with exit code {code}")
        self._channel = grpc.insecure_channel(json.loads(line)["address"])
        self._stub = BatonStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            self._wait_until_ready()
            self.max_model_len = self._stub.GetModelInfo(pb.GetModelInfoRequest()).max_model_len
        except BaseException:
            self.close()
            raise

    def generate(
        self, specs: Sequence[RequestSpec]
    ) -> Iterator[tuple[str, pb.TokensEvent | pb.FinishedEvent]]:
        """Run the requests; yields the events of each when it is over, in the order of their ends.

        Raises:
            RequestError: a request failed; those that are open are cancelled.
        """
        with ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="generate") as threads:
            futures = {threads.submit(self._run, spec): spec.request_id for spec in specs}
            try:
                for future in as_completed(futures):
                    for event in future.result():
                        is_end = event.HasField("finished")
                        yield futures[future], event.finished if is_end else event.tokens
            except grpc.RpcError as error:
                raise RequestError(_code(error), error.details()) from None
            finally:
                for future in futures:
                    future.cancel()

    def close(self) -> None:
        """End the processes."""
        self._channel.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(2 * STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _run(self, spec: RequestSpec) -> list[pb.GenerateEvent]:
        request = pb.GenerateRequest(
            request_id=spec.request_id,
            token_ids=pb.TokenIds(ids=spec.prompt_token_ids),
            sampling_params=_params(spec.params),
        )
        return list(self._stub.Generate(request))

    def _wait_until_ready(self) -> None:
        """Follow the router's health until it serves; a watch ends with the process."""
        health = health_pb2_grpc.HealthStub(self._channel)
        request = health_pb2.HealthCheckRequest()
        try:
            for response in health.Watch(request, timeout=_READY_WITHIN_S, wait_for_ready=True):
                if response.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        except grpc.RpcError as error:
            text = f"the cluster was not ready within {_READY_WITHIN_S:g} s: {error.details()}"
            raise RequestError(ErrorCode.UNAVAILABLE, text) from None


def _flags(settings: WorkerSettings) -> list[str]:
    engine = settings.engine
    flags = [engine.model, "--dtype", engine.dtype]
    flags += ["--max-num-batched-tokens", str(settings.max_num_batched_tokens)]
    max_model_len = engine.kv_cache.max_model_len
    return flags if max_model_len is None else [*flags, "--max-model-len", str(max_model_len)]


def _params(params: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(
        n=params.n,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        max_tokens=params.max_tokens,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
    )


def _code(error: grpc.RpcError) -> ErrorCode:
    name = error.code().name
    return next((code for code, status in STATUS.items() if status.grpc == name), ErrorCode.INTERNAL)
