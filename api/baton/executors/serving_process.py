"""`baton serve` as a child process that ends when this process does."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.config.engine_arg_fields import Part, flags_of
from baton.config.engine_args import EngineArgs
from baton.config.environment import max_n_sequences
from baton.processes.launcher import STOP_WITHIN_S
from baton_core.errors import BatonError, EngineDeadError, ErrorCode, InvalidConfigError, RequestError
from baton_core.requests.pooling import decode_pooling_model
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.process import API_KEY_VARIABLE, EXIT_BAD_CONFIG, child_environment, module_command
from baton_service.router_access import RouterAccess

_SESSION_TIMEOUT_S: Final = 10.0
"""A longer session timeout: these processes share this machine's cores, and no other waits for them."""
_READY_WITHIN_S: Final = 300.0
_WATCH_S: Final = 5.0
"""Interval of the checks that the process still runs."""
_FLAG: Final = re.compile(r"--(\w[\w-]*)")
"""A flag in an error, which is a field of this process's caller."""
_STOPPED_WITHIN_S: Final = 3 * STOP_WITHIN_S
"""The router, then workers; and some more."""


class ServingProcess:
    """A router and workers on this machine, ready when it is made, whose operator only this process can be.

    Raises:
        InvalidConfigError: it refused a setting or the model.
        RequestError: it did not become ready.
    """

    def __init__(self, args: EngineArgs) -> None:
        read_fd, write_fd = os.pipe()
        self._shutdown_timeout_s = args.shutdown_timeout or 0.0
        workers = ("--prefill-workers", args.prefill_workers, "--decode-workers", args.decode_workers)
        placing = ("--split", args.split, "--session-timeout", _SESSION_TIMEOUT_S)
        limits = ("--max-n-sequences", max_n_sequences())
        ports = ("--port", 0, "--grpc-port", 0)
        key = secrets.token_hex(16)
        self.access = RouterAccess(key=key)
        """Access with an operator's key."""
        operator = ("--enable-operator-routes", "--allow-functions")
        ends = ("--report-fd", write_fd, "--exit-with-stdin", "--log-level", "error")
        command = [
            *(*module_command("baton"), "serve"),
            *_flags(replace(args, shutdown_timeout=self._shutdown_timeout_s)),
            *map(str, (*workers, *placing, *limits, *ports, *operator, *ends)),
        ]
        environment = {**child_environment(), API_KEY_VARIABLE: key}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            pass_fds=(write_fd,),
            env=environment,
            process_group=0,  # a terminal's interrupt is for this process alone, which ends its others
        )
        os.close(write_fd)
        self._reports = os.fdopen(read_fd)
        try:
            report = self._next_report()
            if "address" not in report:
                raise self._ended(report)
            self.address: str = report["address"]
            """The router's gRPC address, `host:port`."""
            with self.access.open_channel(self.address) as channel:
                self._wait_until_ready(channel)
                info = BatonStub(channel).GetModelInfo(pb.GetModelInfoRequest())  # type: ignore[no-untyped-call]
        except BaseException:
            self.close()
            raise
        self.max_model_len: int = info.max_model_len
        self.num_blocks = sum(worker.num_blocks for worker in info.workers)
        self.pooling = decode_pooling_model(info.pooling)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def require_running(self) -> None:
        """Refuse what needs the processes once they have ended.

        Raises:
            EngineDeadError: they have.
        """
        if not self.is_running:
            raise EngineDeadError(ErrorCode.UNAVAILABLE, "the processes of the cluster have ended")

    def close(self) -> None:
        """End the processes."""
        self._end_pipes()
        try:
            self._process.wait(_STOPPED_WITHIN_S + 2 * self._shutdown_timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self, channel: grpc.Channel) -> None:
        """Follow the router's health until it serves; a watch ends with the router, which may come back."""
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        deadline = time.monotonic() + _READY_WITHIN_S
        while self.is_running:
            if time.monotonic() > deadline:
                text = f"the cluster was not ready within {_READY_WITHIN_S:g} s"
                raise RequestError(ErrorCode.UNAVAILABLE, text)
            with suppress(grpc.RpcError):
                for response in health.Watch(request, timeout=_WATCH_S, wait_for_ready=True):
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
        raise self._ended(self._next_report())

    def _next_report(self) -> dict[str, Any]:
        """Return the next line that the process reports; empty once it has ended."""
        line = self._reports.readline()
        report: dict[str, Any] = json.loads(line) if line else {}
        return report

    def _ended(self, report: dict[str, Any]) -> BatonError:
        """Return the error of a serving process that has ended, or is about to, by its last report."""
        code = self._process.wait(_STOPPED_WITHIN_S)
        self._end_pipes()
        reason = _FLAG.sub(lambda flag: flag[1].replace("-", "_"), report.get("error", ""))
        if code == EXIT_BAD_CONFIG:
            return InvalidConfigError(reason or "baton serve refused a setting; its log has the reason")
        text = f"baton serve ended with exit code {code}"
        return RequestError(ErrorCode.UNAVAILABLE, f"{text}: {reason}" if reason else text)

    def _end_pipes(self) -> None:
        assert self._process.stdin is not None, "it was made with a pipe"
        self._process.stdin.close()
        self._reports.close()


def _flags(args: EngineArgs) -> list[str]:
    """Return the flags of all values but defaults; the model precedes names, which would absorb it."""
    flags = flags_of(EngineArgs, Part.WORKER, Part.ROUTER, Part.BOTH)
    values = [(flag, getattr(args, flag.field)) for flag in flags]
    given = [text for flag, value in values if value != flag.default for text in flag.given(value)]
    return [args.model, *given]
