"""Reports of a worker to a router, as protobuf."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, assert_never

import msgspec

from baton_core.errors import ErrorCode, InvalidRequestError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.requests.phases import PhaseReport
from baton_core.sessions.control_messages import ControlResult
from baton_core.sessions.router_messages import (
    Failed,
    FirstToken,
    Pooled,
    PromptLogprobs,
    Refused,
    Reserved,
    SequenceOutput,
    TokenBatch,
    ToRouter,
    Transferred,
)
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_checks import (
    MAX_REPORT_BYTES,
    check_size,
    checked_code,
    checked_index,
    checked_name,
    checked_number,
    checked_token_ids,
    chosen,
)
from baton_service.wire.wire_controls import decode_control_result, encode_control_result
from baton_service.wire.wire_logprobs import (
    decode_logprobs,
    decode_prompt_logprobs,
    encode_logprobs,
    encode_prompt_logprobs,
    split_outputs,
    split_prompt_logprobs,
)
from baton_service.wire.wire_phases import decode_phase_report, encode_phase_report
from baton_service.wire.wire_pooling import decode_pooled, encode_pooled
from baton_service.wire.wire_tokens import (
    append_batch,
    decode_batch,
    decode_finish_reason,
    decode_stop_token,
    encode_batch,
)

MAX_MERGED_BYTES: Final = 2**14
"""Size of merged token batches: a router reads each message at once."""
_MAX_HASHES: Final = 16_384
"""Hashes of one CacheDelta: a third of a MiB, with 16 bytes each."""


def encode_report(message: ToRouter) -> pb.WorkerData:
    """Write a report; the session gives it its number.

    Raises:
        InvalidRequestError: it is over 4 MiB, which no part of `split_report` is.
    """
    match message:
        case Reserved(request_id=request_id, num_cached_tokens=num_cached_tokens):
            reserved = pb.Reserved(request_id=request_id, num_cached_tokens=num_cached_tokens)
            data = pb.WorkerData(reserved=reserved)
        case Refused(request_id=request_id, code=code, message=text):
            data = pb.WorkerData(refused=pb.Refused(request_id=request_id, code=code, message=text))
        case PromptLogprobs():
            data = pb.WorkerData(prompt_logprobs=encode_prompt_logprobs(message))
        case FirstToken():
            data = pb.WorkerData(first_token=_encode_first_token(message))
        case Pooled():
            data = pb.WorkerData(pooled=encode_pooled(message))
        case TokenBatch():
            data = pb.WorkerData(token_batch=encode_batch(message))
        case Transferred():
            data = pb.WorkerData(transferred=_encode_transferred(message))
        case Failed(request_id=request_id, code=code, message=text):
            data = pb.WorkerData(failed=pb.Failed(request_id=request_id, code=code, message=text))
        case CacheDelta():
            data = pb.WorkerData(cache_delta=_encode_delta(message))
        case PhaseReport():
            data = pb.WorkerData(phase_report=encode_phase_report(message))
        case ControlResult():
            data = pb.WorkerData(control_result=encode_control_result(message))
        case _:
            assert_never(message)
    check_size(data.ByteSize(), MAX_REPORT_BYTES)
    return data


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
        case "prompt_logprobs":
            return decode_prompt_logprobs(data.prompt_logprobs)
        case "first_token":
            return _decode_first_token(data.first_token)
        case "pooled":
            return decode_pooled(data.pooled)
        case "token_batch":
            return decode_batch(data.token_batch)
        case "transferred":
            return _decode_transferred(data.transferred)
        case "failed":
            return Failed(
                request_id=checked_name("request_id", data.failed.request_id),
                code=checked_code("code", data.failed.code, ErrorCode),
                message=data.failed.message,
            )
        case "control_result":
            return decode_control_result(data.control_result)
        case "phase_report":
            return decode_phase_report(data.phase_report)
        case _:
            return _decode_delta(data.cache_delta)


def merge_reports(earlier: pb.WorkerData, later: pb.WorkerData) -> pb.WorkerData | None:
    """Append the tokens of `later` to `earlier`, which changes; None if they are no token batches to join."""
    if not (earlier.HasField("token_batch") and later.HasField("token_batch")):
        return None
    if earlier.ByteSize() + later.ByteSize() > MAX_MERGED_BYTES:
        return None
    append_batch(earlier.token_batch, later.token_batch)
    return earlier


def split_report(message: ToRouter) -> tuple[ToRouter, ...]:
    """Cut what could be too large for one message into several; anything else stays whole.

    First tokens come in parts, too, which together are those of all sequences.
    """
    match message:
        case CacheDelta(stored=stored, removed=removed) if len(stored) + len(removed) > _MAX_HASHES:
            return _split_delta(message)
        case TokenBatch(outputs=outputs) | FirstToken(outputs=outputs) if any(
            one.logprobs for one in outputs
        ):
            return tuple(msgspec.structs.replace(message, outputs=part) for part in split_outputs(outputs))
        case PromptLogprobs():
            return tuple(split_prompt_logprobs(message))
        case _:
            return (message,)


def _cut(hashes: tuple[bytes, ...]) -> Iterable[tuple[bytes, ...]]:
    return (hashes[start : start + _MAX_HASHES] for start in range(0, len(hashes), _MAX_HASHES))


def _split_delta(delta: CacheDelta) -> tuple[CacheDelta, ...]:
    """Return parts with one number; only the first part of a snapshot is marked as one."""
    parts = [CacheDelta(removed=hashes, number=delta.number) for hashes in _cut(delta.removed)]
    parts += [CacheDelta(stored=hashes, number=delta.number) for hashes in _cut(delta.stored)]
    return (replace(parts[0], is_snapshot=delta.is_snapshot), *parts[1:])


def _encode_delta(delta: CacheDelta) -> pb.CacheDelta:
    return pb.CacheDelta(
        stored=delta.stored, removed=delta.removed, number=delta.number, is_snapshot=delta.is_snapshot
    )


def _decode_delta(delta: pb.CacheDelta) -> CacheDelta:
    return CacheDelta(
        stored=tuple(delta.stored),
        removed=tuple(delta.removed),
        number=delta.number,
        is_snapshot=delta.is_snapshot,
    )


def _encode_outputs(outputs: Iterable[SequenceOutput]) -> list[pb.SequenceOutput]:
    return [
        pb.SequenceOutput(
            request_id=output.request_id,
            index=output.index,
            token_ids=output.token_ids,
            finish_reason=output.finish_reason or "",
            stop_token_id=output.stop_token_id,
            logprobs=encode_logprobs(output.logprobs) if output.logprobs else None,
        )
        for output in outputs
    ]


def _decode_outputs(outputs: Iterable[pb.SequenceOutput]) -> tuple[SequenceOutput, ...]:
    return tuple(
        SequenceOutput(
            request_id=checked_name("request_id", output.request_id),
            index=checked_index("index", output.index),
            token_ids=_checked_output(output.token_ids),
            finish_reason=decode_finish_reason(output.finish_reason),
            stop_token_id=decode_stop_token(output),
            logprobs=decode_logprobs(output.logprobs) if output.logprobs else (),
        )
        for output in outputs
    )


def _checked_output(values: Iterable[int]) -> tuple[int, ...]:
    token_ids = checked_token_ids("token_ids", values)
    if not token_ids:
        raise InvalidRequestError("token_ids", token_ids, "one token or more")
    return token_ids


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
        queue_s=checked_number("queue_s", message.queue_s),
        prefill_s=checked_number("prefill_s", message.prefill_s),
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
        transfer_s=checked_number("transfer_s", message.transfer_s),
        num_recomputed_tokens=message.num_recomputed_tokens,
    )
