"""Encoding of published KV events: msgpack of `[ts, events, data_parallel_rank]`.

An event is a map with its type under `type`; earlier producers write an array, type first, then the fields in
their order. What is written here are maps, which allow fields that a reader does not know; both are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from baton_core.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from baton_core.msgpack import decoder_of


class KVEventBatch(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The content of one message."""

    ts: float
    """The time when it was published, in seconds since 1970."""
    events: tuple[KVEvent, ...]
    data_parallel_rank: int | None = 0


_TYPES: Final[dict[str, type[KVEvent]]] = {
    kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}
_POSITIONS: Final = {
    name: tuple(field for field in kind.__struct_fields__ if field != "epoch")
    for name, kind in _TYPES.items()
}
"""Fields of an event that is an array; earlier producers leave the last ones out, later ones add more."""
_BATCH_FIELDS: Final = KVEventBatch.__struct_fields__
_encoder: Final = msgspec.msgpack.Encoder()
_decode_raw: Final[Callable[[bytes], Any]] = decoder_of(Any)


def encode_batch(batch: KVEventBatch) -> bytes:
    return _encoder.encode(batch)


def decode_batch(payload: bytes) -> KVEventBatch:
    """Read a batch in either encoding; events of unknown types and unknown fields are passed over.

    Raises:
        msgspec.MsgspecError: it is no such batch.
    """
    raw = _decode_raw(payload)
    fields = dict(zip(_BATCH_FIELDS, raw, strict=False)) if isinstance(raw, list) else raw
    if not isinstance(fields, dict) or not isinstance(fields.get("events"), list):
        raise msgspec.ValidationError("a batch is an array or a map with a list of events")
    events = (_decode_event(event) for event in fields["events"])
    known = [event for event in events if event is not None]
    return KVEventBatch(
        ts=msgspec.convert(fields.get("ts"), float),
        events=tuple(known),
        data_parallel_rank=msgspec.convert(fields.get("data_parallel_rank"), int | None),
    )


def _decode_event(raw: Any) -> KVEvent | None:
    fields: Mapping[str, Any]
    match raw:
        case {"type": str(name)}:
            fields = raw
        case [str(name), *values]:
            fields = dict(zip(_POSITIONS.get(name, ()), values, strict=False))
        case _:
            raise msgspec.ValidationError("an event is a map with a type, or an array that begins with one")
    if name not in _TYPES:
        return None
    optional = {field: None for field in _POSITIONS[name] if field not in _REQUIRED}
    return msgspec.convert({"type": name, **optional, **fields}, _TYPES[name])


_REQUIRED: Final = frozenset({"block_hashes", "token_ids", "block_size"})
"""The others were added later, or may be None anyway."""
