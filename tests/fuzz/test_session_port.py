"""Bytes on a router's session port, over real gRPC: a status that names the field, and nobody is hurt."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Final

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_reports import encode_report
from baton_service.wire.wire_worker import encode_hello, encode_load
from tests.fuzz.hostile_bytes import hostile
from tests.integration.router_cluster import serving
from tests.integration.scripted_worker import ScriptedWorker
from tests.property.wire_messages import REPORTS, infos, loads

ANSWERED_WITHIN_S: Final = 60.0
CONNECT: Final = "/baton.v1.Sessions/Connect"
HELLO: Final = pb.WorkerFrame(hello=encode_hello(ScriptedWorker("stranger").info)).SerializeToString()
HELLOS: Final = infos.map(
    lambda info: pb.WorkerFrame(hello=encode_hello(info, router_epoch=1, received=1)).SerializeToString()
)
NUMBERS: Final = st.integers(0, 9) | st.integers(0, 2**64 - 1)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A heartbeat or a report with any number."""
    if draw(st.booleans()):
        load = encode_load(draw(loads))
        beat = pb.WorkerHeartbeat(sent=draw(NUMBERS), received=draw(NUMBERS), load=load)
        return pb.WorkerFrame(heartbeat=beat).SerializeToString()
    data = encode_report(draw(st.one_of(*REPORTS.values())))
    data.number = draw(NUMBERS)
    return pb.WorkerFrame(data=data).SerializeToString()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A whole router, on a loop of its own."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports: list[int] = []

    async def serve() -> None:
        async with serving() as server:
            ports.append(server.grpc_port)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(ANSWERED_WITHIN_S)
    yield ports[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def status_of(port: int, *sent: bytes) -> tuple[str, str]:
    """Open a stream, send these frames, and read to its end."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(CONNECT)(iter(sent), timeout=ANSWERED_WITHIN_S)
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


def frame_of(content: bytes) -> str | None:
    """Which frame these bytes are; None if they are none."""
    try:
        return pb.WorkerFrame.FromString(content).WhichOneof("frame") or "none of them"
    except DecodeError:
        return None


def require_calm(caplog: pytest.LogCaptureFixture) -> None:
    """Fail if the router logged an error of its own."""
    said = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert not said, said[0].getMessage()


QUIET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@QUIET
@given(content=hostile(HELLOS))
def test_any_first_frame(port: int, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    caplog.clear()
    code, details = status_of(port, content)
    assert code in ("OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION"), details
    if frame_of(content) != "hello":
        assert code == "INVALID_ARGUMENT"
    assert code == "OK" or "; allowed: " in details
    require_calm(caplog)


@QUIET
@given(contents=st.lists(hostile(frames()), min_size=1, max_size=4))
def test_any_frames_after_a_hello(port: int, caplog: pytest.LogCaptureFixture, contents: list[bytes]) -> None:
    caplog.clear()
    code, details = status_of(port, HELLO, *contents)
    assert code in ("OK", "INVALID_ARGUMENT"), details
    if frame_of(contents[0]) not in ("heartbeat", "data"):
        assert code == "INVALID_ARGUMENT"
    assert code == "OK" or "; allowed: " in details
    require_calm(caplog)


def test_a_stranger_that_hangs_up_at_once(port: int, caplog: pytest.LogCaptureFixture) -> None:
    for sent in ((b"\xff",), (HELLO, b"\xff"), (HELLO,), ()):
        for _ in range(20):
            channel = grpc.insecure_channel(f"127.0.0.1:{port}")
            channel.stream_stream(CONNECT)(iter(sent), timeout=ANSWERED_WITHIN_S)
            channel.close()
    assert status_of(port, b"\xff")[0] == "INVALID_ARGUMENT"
    require_calm(caplog)


def test_a_frame_that_is_larger_than_any_may_be(port: int, caplog: pytest.LogCaptureFixture) -> None:
    code, _ = status_of(port, HELLO, bytes(2**23))
    assert code == "RESOURCE_EXHAUSTED"
    require_calm(caplog)


def test_one_line_says_what_a_stranger_sent(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert status_of(port, b"\xff" * 9) == (
        "INVALID_ARGUMENT",
        "request is '9 bytes'; allowed: a protobuf message of the method's request type",
    )
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "is refused: request is '9 bytes'" in lines[0]
