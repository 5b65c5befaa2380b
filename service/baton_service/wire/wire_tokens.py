"""The tokens of one step as protobuf, column by column: routers read thousands of them each second."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.finish import FinishReason
from baton_core.sessions.router_messages import SequenceOutput, TokenBatch
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_checks import (
    checked_code,
    checked_index,
    checked_name,
    checked_token_ids,
)
from baton_service.wire.wire_logprobs import decode_logprobs, encode_logprobs


def encode_batch(batch: TokenBatch) -> pb.TokenBatch:
    """Write the tokens of a step."""
    outputs = batch.outputs
    return pb.TokenBatch(
        request_ids=[output.request_id for output in outputs],
        indices=[output.index for output in outputs],
        lengths=[len(output.token_ids) for output in outputs],
        token_ids=[token_id for output in outputs for token_id in output.token_ids],
        details=[
            pb.OutputDetails(
                position=position,
                finish_reason=output.finish_reason or "",
                stop_token_id=output.stop_token_id,
                logprobs=encode_logprobs(output.logprobs),
            )
            for position, output in enumerate(outputs)
            if output.finish_reason is not None or output.stop_token_id is not None or output.logprobs
        ],
    )


def decode_batch(batch: pb.TokenBatch) -> TokenBatch:
    """Read the tokens of a step.

    Raises:
        InvalidRequestError: a field is missing or out of range; the message names it.
    """
    names, indices, lengths = list(batch.request_ids), list(batch.indices), list(batch.lengths)
    token_ids = checked_token_ids("token_ids", batch.token_ids)
    if not len(names) == len(indices) == len(lengths) or sum(lengths) != len(token_ids):
        found = [len(names), len(indices), len(lengths), len(token_ids)]
        allowed = "one request_id, index and length for each output, and as many token_ids as the lengths say"
        raise InvalidRequestError("token_batch", found, allowed)
    if names:
        checked_name("request_id", min(names))
        checked_index("index", max(indices))
        if not min(lengths):
            raise InvalidRequestError("token_ids", (), "one token or more")
    outputs = [
        SequenceOutput(request_id=name, index=index, token_ids=token_ids[end - length : end])
        for name, index, length, end in zip(names, indices, lengths, accumulate(lengths), strict=True)
    ]
    for details in batch.details:
        if not details.position < len(outputs):
            allowed = f"that of one of {len(outputs)} outputs"
            raise InvalidRequestError("details.position", details.position, allowed)
        outputs[details.position] = _with_details(outputs[details.position], details)
    return TokenBatch(outputs=tuple(outputs))


def append_batch(earlier: pb.TokenBatch, later: pb.TokenBatch) -> None:
    """Append the tokens of a later step to `earlier`, which changes."""
    num_before = len(earlier.request_ids)
    earlier.request_ids.extend(later.request_ids)
    earlier.indices.extend(later.indices)
    earlier.lengths.extend(later.lengths)
    earlier.token_ids.extend(later.token_ids)
    for details in later.details:
        earlier.details.add().CopyFrom(details)
        earlier.details[-1].position += num_before


def decode_finish_reason(code: str) -> FinishReason | None:
    """Read the reason why a sequence is over, if it is."""
    return checked_code("finish_reason", code, FinishReason) if code else None


def decode_stop_token(message: pb.SequenceOutput | pb.OutputDetails) -> int | None:
    """Read the token that ended a sequence, if one did."""
    if not message.HasField("stop_token_id"):
        return None
    return checked_token_ids("stop_token_id", (message.stop_token_id,))[0]


def _with_details(output: SequenceOutput, details: pb.OutputDetails) -> SequenceOutput:
    return msgspec.structs.replace(
        output,
        finish_reason=decode_finish_reason(details.finish_reason),
        stop_token_id=decode_stop_token(details),
        logprobs=decode_logprobs(details.logprobs),
    )
