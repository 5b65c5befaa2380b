"""What a worker tells a router, as protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from baton_core.errors import ErrorCode, InvalidRequestError
from baton_core.finish import FinishReason
from baton_core.router_messages import (
    CacheDelta,
    Failed,
    FirstToken,
    Refused,
    Reserved,
    SequenceOutput,
    TokenBatch,
    ToRouter,
    Transferred,
)
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire_checks import (
    MAX_DATA_BYTES,
    checked_code,
    checked_index,
    checked_name,
    checked_seconds,
    checked_token_ids,
    chosen,
    within_limit,
)

_MAX_HASHES: Final = 16_384
"""Of one CacheDelta; with 16 bytes each they take a third of a message."""


def encode_report(message: ToRouter) -> pb.WorkerData:
    """Write a report; the session gives it its number.

    Raises:
        InvalidRequestError: it is over 1 MiB.
    """
    match message:
        case Reserved(request_id=request_id, num_cached_tokens=num_cached_tokens):
            reserved = pb.Reserved(request_id=request_id, num_cached_tokens=num_cached_tokens)
            data = pb.WorkerData(reserved=reserved)
        case Refused(request_id=request_id, code=code, message=text):
            data = pb.WorkerData(refused=pb.Refused(request_id=request_id, code=code, message=text))
        case FirstToken():
            data = pb.WorkerData(first_token=_encode_first_token(message))
        case TokenBatch(outputs=outputs):
            data = pb.WorkerData(token_batch=pb.TokenBatch(outputs=_encode_outputs(outputs)))
        case Transferred():
            data = pb.WorkerData(transferred=_encode_transferred(message))
        case Failed(request_id=request_id, code=code, message=text):
            data = pb.WorkerData(failed=pb.Failed(request_id=request_id, code=code, message=text))
        case CacheDelta(stored=stored, removed=removed):
            data = pb.WorkerData(cache_delta=pb.CacheDelta(stored=stored, removed=removed))
        case _:
            assert_never(message)
    return within_limit(data)


def decode_report(data: pb.WorkerData) -> ToRouter:
    """Read a report.

    Raises:
        InvalidRequestError: a field is missing, unknown or out of range; the message names it.
    """
    match chosen(data, "message"):
        case "reserved":
            return Reserved(
                request_id=checked_name("request_id", data.reserved.request_id),
                num_cached_tokens=data.reserved.num_cached_tokens,
            )
        case "refused":
            return Refused(
                request_id=checked_name("request_id", data.refused.request_id),
                code=checked_code("code", data.refused.code, ErrorCode),
                message=data.refused.message,
            )
        case "first_token":
            return _decode_first_token(data.first_token)
        case "token_batch":
            return TokenBatch(outputs=_decode_outputs(data.token_batch.outputs))
        case "transferred":
            return _decode_transferred(data.transferred)
        case "failed":
            return Failed(
                request_id=checked_name("request_id", data.failed.request_id),
                code=checked_code("code", data.failed.code, ErrorCode),
                message=data.failed.message,
            )
        case _:
            delta = data.cache_delta
            return CacheDelta(stored=tuple(delta.stored), removed=tuple(delta.removed))


def merge_reports(earlier: pb.WorkerData, later: pb.WorkerData) -> pb.WorkerData | None:
    """Append the tokens of `later` to `earlier`, which changes; None if they are no token batches to join."""
    if not (earlier.HasField("token_batch") and later.HasField("token_batch")):
        return None
    if earlier.ByteSize() + later.ByteSize() > MAX_DATA_BYTES:
        return None
    earlier.token_batch.outputs.extend(later.token_batch.outputs)
    return earlier


def split_report(message: ToRouter) -> tuple[ToRouter, ...]:
    """Cut a CacheDelta that could be over 1 MiB into several; anything else stays whole."""
    if not isinstance(message, CacheDelta) or len(message.stored) + len(message.removed) <= _MAX_HASHES:
        return (message,)
    removed = (CacheDelta(removed=hashes) for hashes in _cut(message.removed))
    stored = (CacheDelta(stored=hashes) for hashes in _cut(message.stored))
    return (*removed, *stored)


def _cut(hashes: tuple[bytes, ...]) -> Iterable[tuple[bytes, ...]]:
    return (hashes[start : start + _MAX_HASHES] for start in range(0, len(hashes), _MAX_HASHES))


def _encode_outputs(outputs: Iterable[SequenceOutput]) -> list[pb.SequenceOutput]:
    return [
        pb.SequenceOutput(
            request_id=output.request_id,
            index=output.index,
            token_ids=output.token_ids,
            finish_reason=output.finish_reason or "",
        )
        for output in outputs
    ]


def _decode_outputs(outputs: Iterable[pb.SequenceOutput]) -> tuple[SequenceOutput, ...]:
    return tuple(
        SequenceOutput(
            request_id=checked_name("request_id", output.request_id),
            index=checked_index("index", output.index),
            token_ids=_checked_output(output.token_ids),
            finish_reason=_decode_finish_reason(output.finish_reason),
        )
        for output in outputs
    )


def _checked_output(values: Iterable[int]) -> tuple[int, ...]:
    token_ids = checked_token_ids("token_ids", values)
    if not token_ids:
        raise InvalidRequestError("token_ids", token_ids, "one token or more")
    return token_ids


def _decode_finish_reason(code: str) -> FinishReason | None:
    return checked_code("finish_reason", code, FinishReason) if code else None


def _encode_first_token(message: FirstToken) -> pb.FirstToken:
    return pb.FirstToken(
        request_id=message.request_id,
        outputs=_encode_outputs(message.outputs),
        num_cached_tokens=message.num_cached_tokens,
        queue_s=message.queue_s,
        prefill_s=message.prefill_s,
    )


def _decode_first_token(message: pb.FirstToken) -> FirstToken:
    return FirstToken(
        request_id=checked_name("request_id", message.request_id),
        outputs=_decode_outputs(message.outputs),
        num_cached_tokens=message.num_cached_tokens,
        queue_s=checked_seconds("queue_s", message.queue_s),
        prefill_s=checked_seconds("prefill_s", message.prefill_s),
    )


def _encode_transferred(message: Transferred) -> pb.Transferred:
    return pb.Transferred(
        request_id=message.request_id,
        num_blocks=message.num_blocks,
        num_bytes=message.num_bytes,
        transfer_s=message.transfer_s,
        num_recomputed_tokens=message.num_recomputed_tokens,
    )


def _decode_transferred(message: pb.Transferred) -> Transferred:
    return Transferred(
        request_id=checked_name("request_id", message.request_id),
        num_blocks=message.num_blocks,
        num_bytes=message.num_bytes,
        transfer_s=checked_seconds("transfer_s", message.transfer_s),
        num_recomputed_tokens=message.num_recomputed_tokens,
    )
