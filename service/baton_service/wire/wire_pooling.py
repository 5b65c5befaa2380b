"""Requests that pool, their results, and what a worker pools, as protobuf."""

from __future__ import annotations

from dataclasses import asdict

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import PoolingSpec, PoolingTask, decode_pooling_model
from baton_core.sessions.router_messages import Pooled
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_checks import checked_code, checked_name, checked_number


def encode_pooling(spec: PoolingSpec | None) -> pb.Pooling | None:
    """Write what a request pools."""
    return None if spec is None else pb.Pooling(**asdict(spec))


def decode_pooling(message: pb.Pooling) -> PoolingSpec:
    """Read what a request pools.

    Raises:
        InvalidRequestError: there is no such task.
    """
    return PoolingSpec(
        task=checked_code("pooling.task", message.task, PoolingTask),
        dimensions=message.dimensions if message.HasField("dimensions") else None,
        use_activation=message.use_activation if message.HasField("use_activation") else None,
        type_one_from=message.type_one_from if message.HasField("type_one_from") else None,
    )


def encode_pooled(message: Pooled) -> pb.Pooled:
    """Write a part of a result."""
    return pb.Pooled(**asdict(message))


def decode_pooled(message: pb.Pooled) -> Pooled:
    """Read a part of a result.

    Raises:
        InvalidRequestError: a field is out of range; the message names it.
    """
    pooled = Pooled(
        request_id=checked_name("request_id", message.request_id),
        shape=tuple(message.shape),
        values=message.values,
        num_cached_tokens=message.num_cached_tokens,
        queue_s=checked_number("queue_s", message.queue_s),
        prefill_s=checked_number("prefill_s", message.prefill_s),
    )
    if not 1 <= len(pooled.shape) <= 2 or len(pooled.values) > pooled.num_bytes:
        raise InvalidRequestError("pooled.shape", list(pooled.shape), "one or two sizes, those of its values")
    return pooled


def checked_pooling_model(text: str) -> str:
    """Return the text if it tells what a model pools, or is empty.

    Raises:
        InvalidRequestError: it is of another version.
    """
    try:
        decode_pooling_model(text)
    except msgspec.MsgspecError as error:
        allowed = f"that of this version ({error})"
        raise InvalidRequestError("identity.pooling", f"{text:.100}", allowed) from None
    return text
