"""Frames from workers, publishers and Redis: read, or refused with the error that callers await."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from baton.kv_events import consumer
from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_events.encoding import KVEventBatch, decode_batch, encode_batch
from baton_core.kv_events.event_stream import EventStream
from baton_core.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored
from baton_core.sessions.peer_messages import PeerMessage
from baton_decode import consumer_endpoint
from baton_kv.description import Offer, decode_description, describe_pool
from baton_kv.tcp_messages import ToConsumer, ToProducer, decode_to_consumer, decode_to_producer
from baton_prefill import producer_endpoint
from baton_service.redis.records import (
    ChangeHeader,
    RouterLoad,
    RouterRecord,
    read_change,
    read_router,
    read_router_load,
    unpack_hashes,
)
from tests.builders import make_kv_spec
from tests.fuzz.hostile_bytes import hostile, within_memory


def encoded(kind: Any) -> st.SearchStrategy[bytes]:
    """Messages of a type, numbers that no frame can hold excepted."""

    def encode(message: Any) -> bytes:
        with suppress(OverflowError):
            return msgspec.msgpack.encode(message)
        return b""

    return st.from_type(kind).map(encode)


HASHES: Final = st.lists(st.integers(0, 2**64 - 1) | st.binary(min_size=32, max_size=32), max_size=4).map(
    tuple
)
EVENTS: Final = st.one_of(
    st.builds(
        BlockStored,
        block_hashes=HASHES,
        parent_block_hash=st.none() | st.integers(0, 2**64 - 1),
        token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=8).map(tuple),
        block_size=st.integers(1, 64),
        lora_id=st.none(),
        medium=st.none() | st.just("GPU"),
        lora_name=st.none(),
    ),
    st.builds(BlockRemoved, block_hashes=HASHES, medium=st.none()),
    st.builds(AllBlocksCleared),
)
BATCHES: Final = st.builds(
    KVEventBatch, ts=st.floats(0, 1e10), events=st.lists(EVENTS, max_size=3).map(tuple)
)
MAPS: Final = BATCHES.map(encode_batch)


def as_arrays(batch: KVEventBatch) -> bytes:
    """As earlier producers write it."""
    events: list[Any] = []
    for event in batch.events:
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        events.append([type(event).__name__, *fields.values()])
    return msgspec.msgpack.encode([batch.ts, events, 0])


@given(content=hostile(encoded(PeerMessage)))
def test_the_peer_channel(content: bytes) -> None:
    within_memory(consumer_endpoint._decode, content)
    within_memory(lambda content: producer_endpoint._decode([b"peer", content]), content)


def test_a_message_of_the_peer_channel_without_a_frame() -> None:
    assert producer_endpoint._decode([b"peer"]) is None


@given(content=hostile(encoded(ToProducer | ToConsumer)))
def test_the_tcp_transport(content: bytes) -> None:
    for decode in (decode_to_producer, decode_to_consumer):
        within_memory(decode, content, msgspec.MsgspecError)


SPEC: Final = make_kv_spec()
DESCRIPTION: Final = describe_pool(SPEC, 1, 8, Offer("tcp", "tcp://a:1"), Offer("shm", "x")).encode()


@given(content=hostile(st.just(DESCRIPTION)))
def test_the_description_of_a_pool(content: bytes) -> None:
    read = lambda content: decode_description(content, SPEC)  # noqa: E731
    within_memory(read, content, IncompatibleWorkerError)


@given(content=hostile(MAPS | BATCHES.map(as_arrays)))
def test_kv_events(content: bytes) -> None:
    within_memory(decode_batch, content, msgspec.MsgspecError)


@given(
    numbers=st.lists(hostile(st.integers(0, 9).map(lambda n: n.to_bytes(8, "big"))), max_size=4),
    data=st.data(),
)
def test_a_follower_of_kv_events(numbers: list[bytes], data: st.DataObject) -> None:
    stream = EventStream()
    for number in numbers:
        frames = [number, data.draw(hostile(MAPS))]
        take = data.draw(st.sampled_from([stream.on_live, stream.on_replayed]))
        within_memory(lambda content: consumer._read(stream, [number, content], take), frames[1])  # noqa: B023
    stream.end_replay(is_complete=True)


@given(content=hostile(encoded(RouterRecord) | encoded(ChangeHeader) | encoded(RouterLoad)))
def test_a_record_in_redis(content: bytes) -> None:
    for read in (read_router, read_change, read_router_load):
        within_memory(read, content, msgspec.MsgspecError)


@given(content=st.binary(max_size=200))
def test_hashes_in_redis(content: bytes) -> None:
    hashes = within_memory(unpack_hashes, content, msgspec.ValidationError)
    assert hashes is None or b"".join(hashes) == content
