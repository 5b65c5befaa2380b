"""A client of several routers of one fleet: a stream that breaks at one is resumed at the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc

from baton.executors.router_client import connected
from baton_core.errors import ErrorCode, RequestError
from baton_proto.v1 import baton_pb2 as pb
from baton_service.router_access import RouterAccess


class ResumingClient:
    """Asks the first of `addresses` that answers; used by one thread.

    A router that is lost is not asked again.
    """

    def __init__(self, addresses: Sequence[str], access: RouterAccess) -> None:
        self._addresses = list(addresses)
        self._access = access

    def generate(self, request: pb.GenerateRequest) -> Iterator[pb.GenerateEvent]:
        """Yield each event of a request once, whichever routers it comes from.

        Raises:
            grpc.RpcError: the request failed, or the last router was lost.
            RequestError: UNAVAILABLE, the last router does not answer.
        """
        received = Received(max(1, request.sampling_params.n))
        while True:
            try:
                with connected(self._addresses[0], self._access) as stub:
                    for event in stub.Generate(received.rest_of(request)):
                        received.add(event)
                        yield event
                return
            except (grpc.RpcError, RequestError) as error:
                if received.is_over:
                    return
                if len(self._addresses) == 1 or not _is_lost(error):
                    raise
            del self._addresses[0]


def _is_lost(error: grpc.RpcError | RequestError) -> bool:
    """True if another router may still serve the request."""
    if isinstance(error, RequestError):
        return error.code is ErrorCode.UNAVAILABLE
    return bool(error.code() is grpc.StatusCode.UNAVAILABLE)


class Received:
    """The tokens that a client has received of one request with `n` sequences."""

    def __init__(self, n: int) -> None:
        self.is_over = False
        """True once the end has come; should the router be lost after it, nothing is missing."""
        self._token = ""
        self._sequences = [pb.ReceivedTokens() for _ in range(n)]

    def add(self, event: pb.GenerateEvent) -> None:
        self.is_over = event.HasField("finished")
        self._token = self._token or event.resume_token
        if event.HasField("tokens"):
            sequence = self._sequences[event.tokens.index]
            sequence.ids.extend(event.tokens.token_ids)
            sequence.is_finished = bool(event.tokens.finish_reason)

    def rest_of(self, request: pb.GenerateRequest) -> pb.GenerateRequest:
        """Return the same request for the tokens that are missing."""
        rest = pb.GenerateRequest()
        rest.CopyFrom(request)
        if self._token:
            rest.resume_token = self._token
            rest.received_token_ids.extend(self._sequences)
        return rest
