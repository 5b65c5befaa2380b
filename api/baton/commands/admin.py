"""`baton admin`: shows a router's workers, sets their roles, drains them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from baton.commands.security_arguments import router_access
from baton.executors.router_client import connected_channel, request_error
from baton_core.errors import ErrorCode, RequestError
from baton_core.sessions.control_messages import ControlAction
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub, OperatorStub
from baton_service.process import API_KEY_VARIABLE

_WITHIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.2
_HEADER: Final = (
    *("WORKER", "ROLE", "STATE", "RUNNING", "WAITING", "QUEUED", "FREE BLOCKS"),
    *("PREFILL tok/s", "STEP ms", "PULL MB/s"),
)


def admin(args: argparse.Namespace) -> int:
    """Do what the action asks.

    Raises:
        RequestError: no router answers, it refuses, or the worker is not empty in time.
    """
    with connected_channel(args.address, router_access(args)) as channel, _errors_of(args.address):
        if args.action == "workers":
            stub = BatonStub(channel)  # type: ignore[no-untyped-call]
            info = stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=_WITHIN_S)
            sys.stdout.write(table(info.workers))
        elif args.action == "update-weights":
            operator = OperatorStub(channel)  # type: ignore[no-untyped-call]
            num_workers = _update_weights(operator, args.folder, args.timeout)
            sys.stdout.write(f"{num_workers} workers compute with the weights of {args.folder}\n")
        else:
            _Change(OperatorStub(channel), args.worker_id).make(args)  # type: ignore[no-untyped-call]
    return 0


def _update_weights(stub: OperatorStub, folder: str, timeout_s: float) -> int:
    """Take the steps of an update; returns the number of workers.

    Raises:
        RequestError: a worker could not check or load the weights, or requests did not end in time.
    """
    num_workers = 0
    for action, argument in (
        (ControlAction.START_WEIGHT_UPDATE, {}),
        (ControlAction.UPDATE_WEIGHTS, {"path": str(Path(folder).resolve())}),
        (ControlAction.FINISH_WEIGHT_UPDATE, {}),
    ):
        request = pb.ControlRequest(action=action, argument_json=json.dumps(argument), timeout_s=timeout_s)
        results = stub.Control(request, timeout=timeout_s + _WITHIN_S).results
        for result in results:
            if result.error_code:
                text = f"worker {result.worker_id}: {result.message}"
                raise RequestError(ErrorCode(result.error_code), text)
        num_workers = len(results)
    return num_workers


class _Change:
    """A change of one worker."""

    def __init__(self, stub: OperatorStub, worker_id: str) -> None:
        self._stub = stub
        self._worker_id = worker_id

    def make(self, args: argparse.Namespace) -> None:
        match args.action:
            case "set-role":
                self._ask(ControlAction.SET_ROLE, role=args.role, force=args.force)
                sys.stdout.write(f"{self._worker_id} is now {args.role}\n")
            case "drain":
                work = self._ask(ControlAction.DRAIN, force=args.force)
                if args.wait is not None:
                    self._wait_until_empty(args.wait)
                    work = {}
                state = f"drains: {_words(work)}" if any(work.values()) else "is drained: nothing is open"
                sys.stdout.write(f"{self._worker_id} {state}\n")
            case "undrain":
                self._ask(ControlAction.UNDRAIN)
                sys.stdout.write(f"{self._worker_id} takes requests\n")

    def _wait_until_empty(self, within_s: float) -> None:
        """Ask until the worker is drained: each answer has its open requests. A retry needs no force."""
        deadline = time.monotonic() + within_s
        while any((work := self._ask(ControlAction.DRAIN)).values()):
            if time.monotonic() > deadline:
                text = f"{self._worker_id} drains, but has still open after {within_s:g} s: {_words(work)}"
                raise RequestError(ErrorCode.DEADLINE_EXCEEDED, text)
            time.sleep(_LOOK_EVERY_S)

    def _ask(self, action: ControlAction, **argument: Any) -> dict[str, int]:
        request = pb.ControlRequest(
            action=action,
            argument_json=json.dumps(argument),
            timeout_s=_WITHIN_S,
            worker_ids=[self._worker_id],
        )
        (result,) = self._stub.Control(request, timeout=2 * _WITHIN_S).results
        if result.error_code:
            raise RequestError(ErrorCode(result.error_code), f"worker {result.worker_id}: {result.message}")
        work: dict[str, int] = json.loads(result.result_json)
        return work


def table(workers: Sequence[pb.ModelInfo.Worker]) -> str:
    """One line for each worker, in the order of their names, under a header; columns are aligned."""
    rows = [_HEADER, *(_row(worker) for worker in sorted(workers, key=lambda worker: worker.worker_id))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _row(worker: pb.ModelInfo.Worker) -> tuple[str, ...]:
    states = {
        "faulty": bool(worker.fault),
        "asleep": worker.is_asleep,
        "draining": worker.is_draining,
        "paused": worker.is_paused,
    }
    state = next((state for state, is_so in states.items() if is_so), "serving")
    return (
        worker.worker_id,
        f"{worker.role} (set)" if worker.is_role_fixed else worker.role,
        state,
        str(worker.num_running),
        str(worker.num_waiting),
        str(worker.num_queued_tokens),
        f"{worker.num_available_blocks}/{worker.num_blocks}",
        _rate(worker.prefill_tokens_per_s, 1.0),
        _rate(worker.decode_step_s, 1e-3),
        _rate(worker.pull_bytes_per_s, 1e6),
    )


def _rate(value: float, unit: float) -> str:
    return f"{value / unit:.4g}" if value else "-"


def _words(work: dict[str, int]) -> str:
    requests, offers, transfers = work["num_requests"], work["num_offers"], work["num_transfers"]
    return f"{requests} requests, {offers} leases, {transfers} transfers"


@contextmanager
def _errors_of(address: str) -> Iterator[None]:
    """Turn what a call ends with into an error that says what to do."""
    try:
        yield
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            text = f"the router at {address} takes no orders; start it with --enable-operator-routes"
            raise RequestError(ErrorCode.UNAVAILABLE, text) from None
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            how = f"--api-key or {API_KEY_VARIABLE}"
            text = f"the router at {address} wants a key, by {how}: {error.details()}"
            raise RequestError(ErrorCode.INVALID_REQUEST, text) from None
        raise request_error(error) from None
