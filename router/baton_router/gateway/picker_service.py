"""The gRPC service of the endpoint picker: one stream for each request that a gateway has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc

from baton_core.errors import RequestError
from baton_proto.ext_proc import external_processor_pb2 as pb
from baton_proto.ext_proc import external_processor_pb2_grpc as pb_grpc
from baton_router.gateway.messages import (
    DUPLEX,
    add_metadata,
    body_chunks,
    immediate,
    mutation,
    pass_on,
    read_headers,
    read_subset,
)
from baton_router.gateway.picker import Picked, Picker, Refused, refuse
from baton_router.http.bodies import is_declared_within, too_large
from baton_router.http.errors import HttpError
from baton_router.streams.memory import BodyReservation

EXTERNAL_PROCESSOR: Final = pb.DESCRIPTOR.services_by_name["ExternalProcessor"].full_name
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_BUFFERED: Final = (pb.BUFFERED, pb.BUFFERED_PARTIAL)


class PickerService(pb_grpc.ExternalProcessorServicer):
    """Answers a gateway. Bodies come streamed in both directions, or whole (`BUFFERED`)."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    async def Process(  # noqa: N802 (name of the protocol)
        self, requests: AsyncIterator[pb.ProcessingRequest], context: _Context
    ) -> AsyncIterator[pb.ProcessingResponse]:
        with self._picker.service.bodies.body() as room:
            exchange = _Exchange(self._picker, room)
            try:
                async for message in requests:
                    for response in await exchange.take(message):
                        yield response
                        if response.HasField("immediate_response"):
                            return
            finally:
                exchange.begin()


class _Exchange:
    """One request from its headers to those of its response."""

    def __init__(self, picker: Picker, room: BodyReservation) -> None:
        self._picker = picker
        self._room = room
        self._headers: dict[str, str] = {}
        self._subset: list[str] | None = None
        self._mode: pb.BodySendMode = DUPLEX
        self._response_mode: pb.BodySendMode = DUPLEX
        self._body: bytearray | None = None
        """Body so far; None where it is not needed, or not any more."""
        self._is_waiting = False

    def begin(self) -> None:
        """Note that a worker has the request, or that it is over."""
        self._picker.num_waiting -= self._is_waiting
        self._is_waiting = False

    async def take(self, message: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        """Return the responses to a message; none where the gateway has to send more first."""
        match message.WhichOneof("request"):
            case "request_headers":
                return await self._on_headers(message)
            case "request_body":
                return await self._on_body(message.request_body)
            case "request_trailers":
                held = [] if self._body is None else await self._pick_by_body(bytes(self._body))
                return [*held, pb.ProcessingResponse(request_trailers=pb.TrailersResponse())]
            case "response_headers":
                self.begin()
                return [pb.ProcessingResponse(response_headers=pb.HeadersResponse())]
            case "response_body":
                unchanged = pass_on(message.response_body, self._response_mode)
                return [pb.ProcessingResponse(response_body=unchanged)]
            case "response_trailers":
                return [pb.ProcessingResponse(response_trailers=pb.TrailersResponse())]
        return []

    async def _on_headers(self, message: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        self._headers = read_headers(message.request_headers)
        self._subset = read_subset(message)
        if message.HasField("protocol_config"):
            self._mode = message.protocol_config.request_body_mode
            self._response_mode = message.protocol_config.response_body_mode
        is_sent = not message.request_headers.end_of_stream and self._mode in (DUPLEX, *_BUFFERED)
        if is_sent and self._picker.needs_body(self._headers):
            if not is_declared_within(self._headers, most := self._picker.max_body_bytes):
                return [self._respond(refuse(too_large(most)))]
            self._body = bytearray()
            waits = pb.ProcessingResponse(request_headers=pb.HeadersResponse())
            return [] if self._mode == DUPLEX else [waits]
        picked = await self._picker.pick(self._headers, None, self._subset)
        return [self._respond(picked)]

    async def _on_body(self, piece: pb.HttpBody) -> list[pb.ProcessingResponse]:
        if self._body is None:
            return [pb.ProcessingResponse(request_body=pass_on(piece, self._mode))]
        self._body += piece.body
        try:
            self._room.add(len(piece.body))
            if len(self._body) > (most := self._picker.max_body_bytes):
                raise too_large(most)
        except (RequestError, HttpError) as error:
            self._body = None
            return [self._respond(refuse(error))]
        if piece.end_of_stream or self._mode == pb.BUFFERED:
            return await self._pick_by_body(bytes(self._body))
        return [] if self._mode == DUPLEX else await self._pick_by_body(None)

    async def _pick_by_body(self, body: bytes | None) -> list[pb.ProcessingResponse]:
        """Pick by a whole body, or without one that the gateway could not hold; the held body follows."""
        self._body = None
        self._room.release()  # the call of the route counts it again
        picked = await self._picker.pick(self._headers, body, self._subset)
        response = self._respond(picked, is_to_body=self._mode != DUPLEX)
        if isinstance(picked, Refused) or body is None or self._mode != DUPLEX:
            return [response]
        return [response, *body_chunks(body)]

    def _respond(self, picked: Picked | Refused, *, is_to_body: bool = False) -> pb.ProcessingResponse:
        if isinstance(picked, Refused):
            return immediate(picked.status, picked.headers, picked.body)
        self._is_waiting = picked.is_waiting
        self._picker.num_waiting += picked.is_waiting
        common = pb.CommonResponse(header_mutation=mutation(picked.destinations, picked.named))
        if is_to_body:
            response = pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))
        else:
            response = pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common))
        return add_metadata(response, picked.destinations)
