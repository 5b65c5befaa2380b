"""The published form of KV events, against bytes written down by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_core.kv_events.encoding import KVEventBatch, decode_batch, encode_batch
from baton_core.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent

HASH, PARENT = bytes(range(16)), bytes(range(16, 32))
STORED = BlockStored(
    block_hashes=(HASH,),
    parent_block_hash=PARENT,
    token_ids=(1, 2, 300, 70_000),
    block_size=4,
    lora_id=None,
    medium="GPU",
    lora_name=None,
    epoch=9,
)
BIN_HASH, BIN_PARENT = b"\xc4\x10" + HASH, b"\xc4\x10" + PARENT
TOKENS = b"\x94\x01\x02\xcd\x01\x2c\xce\x00\x01\x11\x70"
TS = b"\xcb\x3f\xf8" + bytes(6)
"""1.5"""
STORED_MAP = (
    b"\x89\xa4type\xabBlockStored\xacblock_hashes\x91"
    + BIN_HASH
    + b"\xb1parent_block_hash"
    + BIN_PARENT
    + b"\xa9token_ids"
    + TOKENS
    + b"\xaablock_size\x04\xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0\xa5epoch\x09"
)
STORED_ARRAY = (
    b"\x99\xabBlockStored\x91" + BIN_HASH + BIN_PARENT + TOKENS + b"\x04\xc0\xa3GPU\xc0\x91\x91\xa4salt"
)

hashes = st.one_of(st.binary(min_size=1, max_size=32), st.integers(-(2**63), 2**64 - 1))
names = st.none() | st.text(max_size=8)
epochs = st.none() | st.integers(0, 2**63)
events: st.SearchStrategy[KVEvent] = st.one_of(
    st.builds(
        BlockStored,
        block_hashes=st.lists(hashes, max_size=3).map(tuple),
        parent_block_hash=st.none() | hashes,
        token_ids=st.lists(st.integers(0, 2**31), max_size=8).map(tuple),
        block_size=st.integers(1, 1024),
        lora_id=st.none() | st.integers(0, 9),
        medium=names,
        lora_name=names,
        extra_keys=st.none() | st.lists(st.none() | st.tuples(st.text(max_size=4))).map(tuple),
        group_idx=st.none() | st.integers(0, 4),
        epoch=epochs,
    ),
    st.builds(BlockRemoved, block_hashes=st.lists(hashes, max_size=3).map(tuple), medium=names, epoch=epochs),
    st.builds(AllBlocksCleared, epoch=epochs),
)


def test_events_are_written_as_tagged_maps_in_an_array() -> None:
    batch = KVEventBatch(ts=1.5, events=(STORED, AllBlocksCleared()), data_parallel_rank=0)
    assert (
        encode_batch(batch) == b"\x93" + TS + b"\x92" + STORED_MAP + b"\x81\xa4type\xb0AllBlocksCleared\x00"
    )


def test_removed_blocks_are_written_with_their_medium() -> None:
    batch = KVEventBatch(ts=1.5, events=(BlockRemoved(block_hashes=(HASH,), medium="GPU"),))
    event = b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91" + BIN_HASH + b"\xa6medium\xa3GPU"
    assert encode_batch(batch) == b"\x93" + TS + b"\x91" + event + b"\x00"


def test_events_of_earlier_producers_are_arrays() -> None:
    payload = (
        b"\x93" + TS + b"\x93" + STORED_ARRAY + b"\x92\xacBlockRemoved\x91\x07\x91\xb0AllBlocksCleared\xc0"
    )
    stored, removed, cleared = decode_batch(payload).events
    assert stored == msgspec.structs.replace(STORED, extra_keys=(("salt",),), epoch=None)
    assert removed == BlockRemoved(block_hashes=(7,), medium=None)
    assert cleared == AllBlocksCleared()


def test_earlier_arrays_lack_fields_and_later_ones_have_more() -> None:
    short = ["BlockStored", [1], None, [5, 6], 2, None]
    long = ["BlockStored", [1], None, [5, 6], 2, None, "GPU", None, None, 1, "full_attention", 128, "LOCAL"]
    first, second = decode_batch(msgspec.msgpack.encode([0.0, [short, long]])).events
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.token_ids, first.medium, first.group_idx) == ((5, 6), None, None)
    assert (second.token_ids, second.medium, second.group_idx, second.epoch) == ((5, 6), "GPU", 1, None)


def test_what_a_later_producer_adds_is_passed_over() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [3], "medium": None, "reason": "age"}
    moved = {"type": "BlockMoved", "block_hashes": [3], "to": "disk"}
    batch = decode_batch(msgspec.msgpack.encode([2.0, [moved, removed, ["BlockMoved", 3]], 1, "more"]))
    assert batch == KVEventBatch(
        ts=2.0, events=(BlockRemoved(block_hashes=(3,), medium=None),), data_parallel_rank=1
    )


def test_a_batch_may_be_a_map_too() -> None:
    fields = {"ts": 2.0, "events": [{"type": "AllBlocksCleared"}]}
    expected = KVEventBatch(ts=2.0, events=(AllBlocksCleared(),), data_parallel_rank=None)
    assert decode_batch(msgspec.msgpack.encode(fields)) == expected


@given(st.lists(events, max_size=4), st.floats(0, 1e10), st.none() | st.integers(0, 7))
def test_what_is_written_is_read_as_it_was(told: list[KVEvent], ts: float, rank: int | None) -> None:
    batch = KVEventBatch(ts=ts, events=tuple(told), data_parallel_rank=rank)
    assert decode_batch(encode_batch(batch)) == batch


@pytest.mark.parametrize(
    "payload",
    [
        5,
        [],
        [1.0, 7],
        ["soon", []],
        [1.0, [[]]],
        [1.0, [{"block_hashes": []}]],
        [1.0, [["BlockStored", "hash", None, [], 4]]],
        [1.0, [{"type": "BlockStored", "block_hashes": []}]],
        {"ts": 1.0},
    ],
)
def test_anything_else_is_refused(payload: Any) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_batch(msgspec.msgpack.encode(payload))


def test_garbage_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_batch(b"\xc1garbage")
