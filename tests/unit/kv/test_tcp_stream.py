from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from baton_kv.tcp_stream import FrameStream, Place

LONG = np.random.default_rng(1).integers(0, 256, (600, 5000), np.uint8)
"""More pieces than one system call takes, more bytes than a connection holds."""


def decode(content: bytes | memoryview) -> bytes:
    return bytes(content)


def nowhere(message: bytes, num_bytes: int) -> list[memoryview]:
    return []


def into(target: np.ndarray) -> Place[bytes]:
    return lambda message, num_bytes: [row.data for row in target]


@pytest.fixture
def ends() -> Iterator[tuple[FrameStream[bytes], FrameStream[bytes]]]:
    first, second = (FrameStream(end, decode, max_message_bytes=100) for end in socket.socketpair())
    yield first, second
    first.close()
    second.close()


def receive(sender: FrameStream[bytes], receiver: FrameStream[bytes], place: Place[bytes]) -> bytes:
    while (message := receiver.receive(place)) is None:
        sender.flush()
    return message


def test_messages_and_payloads_arrive_in_their_order(ends: tuple[FrameStream[bytes], ...]) -> None:
    sender, receiver = ends
    target = np.zeros((1000, 3000), np.uint8)
    sender.send(b"first")
    sender.send(b"second", [row.data for row in LONG])
    sender.send(b"third")
    assert sender.num_unsent
    heard = [receive(sender, receiver, into(target)) for _ in range(3)]
    assert heard == [b"first", b"second", b"third"]
    assert target.tobytes() == LONG.tobytes()
    assert (sender.num_unsent, receiver.receive(nowhere)) == (0, None)


def test_a_payload_that_is_thrown_away_changes_nothing_more(ends: tuple[FrameStream[bytes], ...]) -> None:
    sender, receiver = ends
    target = np.zeros_like(LONG)
    sender.send(b"long", [row.data for row in LONG])
    assert receiver.receive(into(target)) is None
    written = target.copy()
    assert written.any()
    assert not np.array_equal(written, LONG)
    receiver.discard()
    assert receive(sender, receiver, nowhere) == b"long"
    assert np.array_equal(target, written)
    sender.send(b"next")
    assert receive(sender, receiver, nowhere) == b"next"


def test_a_message_that_is_too_large_is_refused_before_it_is_read(
    ends: tuple[FrameStream[bytes], ...],
) -> None:
    sender, receiver = ends
    sender.send(bytes(101))
    with pytest.raises(ValueError, match="a message has 101 bytes; allowed: 100"):
        receiver.receive(nowhere)


def test_the_end_of_a_connection_is_an_error(ends: tuple[FrameStream[bytes], ...]) -> None:
    sender, receiver = ends
    sender.send(b"last")
    sender.close()
    assert receiver.receive(nowhere) == b"last"
    with pytest.raises(ConnectionResetError):
        receiver.receive(nowhere)
