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
from baton.process import EXIT_BAD_CONFIG
from baton.router_client import request_error
from baton.worker_process import WorkerSettings
from baton_core.errors import BatonError, ErrorCode, InvalidConfigError, RequestError
from baton_core.router_messages import RequestSpec
from baton_core.sampling_params import SamplingParams
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.grpc_options import client_options

MAX_CALLS = 128
"""Requests that are open at the router at a time."""
_READY_WITHIN_S = 300.0
_STOPPED_WITHIN_S = 3 * STOP_WITHIN_S
"""Workers, then the router; and some more."""


class SpawnedCluster:
    """`baton serve` as a child process that ends when this process does."""

    def __init__(self, settings: WorkerSettings, num_prefill_workers: int, num_decode_workers: int) -> None:
        """Start it and wait until it is ready.

        Raises:
            InvalidConfigError: it refused a setting or the model; its own message is on stderr.
            RequestError: it did not become ready.
        """
        read_fd, write_fd = os.pipe()
        workers = ("--prefill-workers", num_prefill_workers, "--decode-workers", num_decode_workers)
        ends = ("--port", 0, "--report-fd", write_fd, "--exit-with-stdin", "--log-level", "error")
        command = [sys.executable, "-m", "baton", "serve", *_flags(settings), *map(str, (*workers, *ends))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(write_fd,))
        os.close(write_fd)
        with os.fdopen(read_fd) as pipe:
            line = pipe.readline()
        if not line:
            raise self._ended()
        self._channel = grpc.insecure_channel(json.loads(line)["address"], options=client_options())
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
        calls = _Calls(self._stub)
        with ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="generate") as threads:
            futures = {threads.submit(calls.run, spec): spec.request_id for spec in specs}
            try:
                for future in as_completed(futures):
                    for event in future.result():
                        is_end = event.HasField("finished")
                        yield futures[future], event.finished if is_end else event.tokens
            except grpc.RpcError as error:
                raise request_error(error) from None
            finally:
                for future in futures:
                    future.cancel()
                calls.cancel()

    def close(self) -> None:
        """End the processes."""
        self._channel.close()
        self._end_input()
        try:
            self._process.wait(_STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> None:
        """Follow the router's health until it serves; a watch ends with the process."""
        health = health_pb2_grpc.HealthStub(self._channel)
        request = health_pb2.HealthCheckRequest()
        try:
            for response in health.Watch(request, timeout=_READY_WITHIN_S, wait_for_ready=True):
                if response.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                text = f"the cluster was not ready within {_READY_WITHIN_S:g} s"
                raise RequestError(ErrorCode.UNAVAILABLE, text) from None
        raise self._ended()

    def _ended(self) -> BatonError:
        """Why there is no cluster: its process has ended, or is about to."""
        code = self._process.wait(_STOPPED_WITHIN_S)
        self._end_input()
        if code == EXIT_BAD_CONFIG:
            return InvalidConfigError("baton serve refused a setting or the model; its log has the reason")
        return RequestError(ErrorCode.UNAVAILABLE, f"baton serve ended with exit code {code}")

    def _end_input(self) -> None:
        assert self._process.stdin is not None, "it was made with a pipe"
        self._process.stdin.close()


class _Calls:
    """The calls of one `generate`, each read to its end on a thread."""

    def __init__(self, stub: BatonStub) -> None:
        self._stub = stub
        self._open: set[grpc.Call] = set()
        self._is_cancelled = False

    def run(self, spec: RequestSpec) -> list[pb.GenerateEvent]:
        request = pb.GenerateRequest(
            request_id=spec.request_id,
            token_ids=pb.TokenIds(ids=spec.prompt_token_ids),
            sampling_params=_params(spec.params),
            priority=spec.priority,
        )
        call = self._stub.Generate(request)
        self._open.add(call)
        try:
            if self._is_cancelled:
                call.cancel()
            return list(call)
        finally:
            self._open.discard(call)

    def cancel(self) -> None:
        """Cancel what is open, and what a thread is about to open."""
        self._is_cancelled = True
        for call in tuple(self._open):
            call.cancel()


def _flags(settings: WorkerSettings) -> list[str]:
    engine = settings.engine
    flags = [engine.model, "--dtype", engine.dtype]
    scheduler = settings.scheduler
    flags += ["--max-num-batched-tokens", str(scheduler.max_num_batched_tokens)]
    flags += ["--max-num-seqs", str(scheduler.max_num_seqs), "--scheduling-policy", scheduler.policy]
    flags += ["--max-num-partial-prefills", str(scheduler.max_num_partial_prefills)]
    flags += ["--max-long-partial-prefills", str(scheduler.max_long_partial_prefills)]
    flags += ["--long-prefill-token-threshold", str(scheduler.long_prefill_token_threshold)]
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
