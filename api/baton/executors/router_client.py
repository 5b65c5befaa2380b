"""A client's way to a running router, for the commands: its channel, its requests, its errors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_core.errors import STATUS, BatonError, ErrorCode, RequestError, reason_of
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.port_probe import ROUTER_GRPC
from baton_service.router_access import RouterAccess

CONNECT_WITHIN_S: Final = 10.0
_PROBE_AFTER_S: Final = 1.0
"""Time without an answer after which the port is asked what it speaks."""
_SAMPLING_FIELDS: Final = ("max_tokens", "temperature", "top_p", "top_k", "seed")


@contextmanager
def connected(address: str, access: RouterAccess) -> Iterator[BatonStub]:
    """A stub of the router at `address`, which answers.

    Raises:
        RequestError: UNAVAILABLE, nobody answers.
    """
    with connected_channel(address, access) as channel:
        yield BatonStub(channel)  # type: ignore[no-untyped-call]


@contextmanager
def connected_channel(address: str, access: RouterAccess) -> Iterator[grpc.Channel]:
    """A channel to the router at `address`, which answers; its calls name the key.

    Raises:
        RequestError: UNAVAILABLE, nobody answers.
    """
    with access.open_channel(address) as channel:
        ready = grpc.channel_ready_future(channel)
        is_ready = _is_done(ready, min(_PROBE_AFTER_S, CONNECT_WITHIN_S))
        if not is_ready or access.may_lack_certificate:
            if problem := access.port_problem(address, ROUTER_GRPC):
                raise RequestError(ErrorCode.UNAVAILABLE, f"address is {address!r}, {problem}")
            if not _is_done(ready, CONNECT_WITHIN_S):
                how = " by TLS, with a certificate of --ssl-ca-certs" if access.is_encrypted else ""
                raise RequestError(ErrorCode.UNAVAILABLE, f"no router answers at {address}{how}")
        yield channel


def _is_done(ready: grpc.Future, within_s: float) -> bool:
    try:
        ready.result(timeout=within_s)
    except grpc.FutureTimeoutError:
        return False
    return True


def wait_until_ready(address: str, access: RouterAccess, within_s: float) -> None:
    """Wait until the router at `address` can serve a prompt, but no longer than `within_s`.

    Raises:
        RequestError: UNAVAILABLE, nobody answers.
    """
    if not within_s:
        return
    with connected_channel(address, access) as channel:
        request = health_pb2.HealthCheckRequest()
        try:
            for response in health_pb2_grpc.HealthStub(channel).Watch(request, timeout=within_s):
                if response.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        except grpc.RpcError:
            return  # what is asked for next says why


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that the command line gives, by their names in requests."""
    return {name: getattr(args, name) for name in _SAMPLING_FIELDS if getattr(args, name) is not None}


def sampled_request(args: argparse.Namespace) -> pb.GenerateRequest:
    """A request without a prompt, with the sampling parameters that the command line gives."""
    params = pb.SamplingParams(**sampling_fields(args))
    return pb.GenerateRequest(model=args.model_name, sampling_params=params)


def request_error(error: Exception) -> RequestError:
    """The error that a call ended with, at the router or on this side."""
    if isinstance(error, grpc.RpcError):
        name = error.code().name
        code = next((code for code, status in STATUS.items() if status.grpc == name), ErrorCode.INTERNAL)
        return RequestError(code, error.details())
    return RequestError(error.code if isinstance(error, BatonError) else ErrorCode.INTERNAL, reason_of(error))
