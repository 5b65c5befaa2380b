"""The messages of the endpoint picker to a gateway, by the modes in which that sends bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton_core.requests.request_context import NamedWorkers
from baton_proto.ext_proc import external_processor_pb2 as pb
from baton_router.gateway.messages import read_headers
from baton_router.gateway.picker import Picked, Picker, Refused
from baton_router.gateway.picker_service import PickerService
from baton_router.streams.memory import BodyMemory

TRAILERS = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())


class FakePicker:
    """Picks one router and worker for all bodies but empty ones."""

    max_body_bytes = 8
    num_waiting = 0

    def __init__(self) -> None:
        self.service = SimpleNamespace(bodies=BodyMemory())
        self.bodies: list[bytes | None] = []
        """Bodies that were picked for."""

    def needs_body(self, headers: object) -> bool:
        return True

    async def pick(self, headers: object, body: bytes | None, subset: object) -> Picked | Refused:
        self.bodies.append(body)
        if body == b"":
            return Refused(status=400, headers={}, body=b"")
        return Picked(destinations=("10.0.0.1:80",), named=NamedWorkers(prefill="p", decode="d"))


def headers(mode: pb.BodySendMode, **values: str) -> pb.ProcessingRequest:
    listed = [pb.HeaderValue(key=key.replace("_", "-"), raw_value=values[key].encode()) for key in values]
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=listed)))
    message.protocol_config.request_body_mode = mode
    return message


def piece(body: bytes, *, is_last: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=is_last))


def answers(picker: FakePicker, *messages: pb.ProcessingRequest) -> list[str]:
    """Return the kinds of the responses to a gateway's messages; a refusal by its status."""

    async def send() -> AsyncIterator[pb.ProcessingRequest]:
        for message in messages:
            yield message

    async def collect() -> list[str]:
        service = PickerService(cast("Picker", picker))
        responses = [one async for one in service.Process(send(), cast("Any", None))]
        kinds = [str(one.WhichOneof("response")) for one in responses]
        refused = [str(one.immediate_response.status.code) for one in responses]
        return [refused[at] if kind == "immediate_response" else kind for at, kind in enumerate(kinds)]

    return asyncio.run(collect())


def test_trailers_may_end_a_streamed_body() -> None:
    picker = FakePicker()
    kinds = answers(picker, headers(pb.FULL_DUPLEX_STREAMED), piece(b"{}"), TRAILERS)
    assert (kinds, picker.bodies) == (["request_headers", "request_body", "request_trailers"], [b"{}"])


@pytest.mark.parametrize(("mode", "picked"), [(pb.BUFFERED, b"{}"), (pb.BUFFERED_PARTIAL, None)])
def test_a_buffered_body_waits_for_no_trailers(mode: pb.BodySendMode, picked: bytes | None) -> None:
    picker = FakePicker()
    kinds = answers(picker, headers(mode), piece(b"{}"))
    assert (kinds, picker.bodies) == (["request_headers", "request_body"], [picked])


def test_a_body_is_refused_as_soon_as_it_is_known_to_be_too_large() -> None:
    assert answers(FakePicker(), headers(pb.BUFFERED, content_length="9")) == ["413"]
    asked = headers(pb.FULL_DUPLEX_STREAMED, content_length="8")
    assert answers(FakePicker(), asked, piece(b"{"), piece(b"12345678")) == ["413"]


def test_nothing_follows_a_refusal() -> None:
    assert answers(FakePicker(), headers(pb.FULL_DUPLEX_STREAMED), TRAILERS) == ["400"]


def test_the_text_of_a_header_is_its_bytes() -> None:
    text = pb.HeaderValue(key="X-User", value="日")
    raw = pb.HeaderValue(key="x-raw", raw_value="日".encode())
    read = read_headers(pb.HttpHeaders(headers=pb.HeaderMap(headers=[text, raw])))
    assert {name: value.encode("latin-1").decode() for name, value in read.items()} == {
        "x-user": "日",
        "x-raw": "日",
    }
