"""A client's way to a running router, for the commands: its channel, its requests, its errors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_core.errors import STATUS, ErrorCode, RequestError
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.router_access import RouterAccess

CONNECT_WITHIN_S: Final = 10.0
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
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_WITHIN_S)
        except grpc.FutureTimeoutError:
            how = "by TLS" if access.is_encrypted else "in plain text; a router with TLS wants --ssl-ca-certs"
            raise RequestError(ErrorCode.UNAVAILABLE, f"no router answers at {address} {how}") from None
        yield channel


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


def sampled_request(args: argparse.Namespace) -> pb.GenerateRequest:
    """A request without a prompt, with the sampling parameters that the command line gives."""
    given = {name: getattr(args, name) for name in _SAMPLING_FIELDS if getattr(args, name) is not None}
    return pb.GenerateRequest(model=args.model_name, sampling_params=pb.SamplingParams(**given))


def request_error(error: grpc.RpcError) -> RequestError:
    """The error that a call ended with."""
    name = error.code().name
    code = next((code for code, status in STATUS.items() if status.grpc == name), ErrorCode.INTERNAL)
    return RequestError(code, error.details())
