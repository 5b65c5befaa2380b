"""Messages of a session that are large, or many: what is cut, what is joined, what is not sent."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from baton_core.errors import InvalidRequestError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import (
    FirstToken,
    PromptLogprobs,
    Reserved,
    SequenceOutput,
    TokenBatch,
    ToRouter,
)
from baton_proto.v1 import session_pb2 as pb
from baton_service.grpc_options import MAX_GRPC_BYTES
from baton_service.wire.wire_commands import encode_command
from baton_service.wire.wire_reports import decode_report, encode_report, merge_reports, split_report
from tests.property.wire_messages import make_generate


def test_a_prompt_of_200_000_tokens_fits_in_a_message_of_1_mib() -> None:
    data = encode_command(make_generate(prompt_token_ids=(2**31 - 1,) * 200_000))
    assert pb.RouterFrame(data=data).ByteSize() <= 2**20


def test_a_message_over_1_mib_is_not_sent() -> None:
    with pytest.raises(InvalidRequestError, match=r"message is '.* bytes'; allowed: at most 1048512 bytes"):
        encode_command(make_generate(prompt_token_ids=(2**31 - 1,) * 250_000))


def make_batch(*ids: int) -> pb.WorkerData:
    output = SequenceOutput(request_id="r", index=0, token_ids=ids)
    return encode_report(TokenBatch(outputs=(output,)))


def test_token_batches_merge_in_order_up_to_the_limit() -> None:
    merged = merge_reports(make_batch(1), make_batch(2, 3))
    assert merged is not None
    batch = decode_report(merged)
    assert isinstance(batch, TokenBatch)
    assert [output.token_ids for output in batch.outputs] == [(1,), (2, 3)]
    half = make_batch(*[2**31 - 1] * 110_000)
    assert merge_reports(half, half) is None
    assert merge_reports(half, encode_report(Reserved(request_id="r", num_cached_tokens=0))) is None
    assert merge_reports(encode_report(Reserved(request_id="r", num_cached_tokens=0)), half) is None


def test_a_large_cache_delta_is_cut_into_messages_that_fit() -> None:
    stored = tuple(number.to_bytes(16, "little") for number in range(100_000))
    removed = tuple(number.to_bytes(16, "big") for number in range(1, 20_000))
    parts = split_report(CacheDelta(stored=stored, removed=removed))
    received = [decode_report(encode_report(part)) for part in parts]
    assert sum((part.stored for part in received), ()) == stored
    assert sum((part.removed for part in received), ()) == removed
    small = CacheDelta(stored=stored[:10])
    assert split_report(small) == (small,)


# --- log-probabilities of a whole vocabulary ---

VOCABULARY = PositionLogprobs(
    token_ids=tuple(range(2**21 - 1, 2**21 - 1 - 262_144, -1)),
    logprobs=(-0.5,) * 262_144,
    ranks=tuple(range(262_144, 0, -1)),
)


def sent(message: ToRouter) -> list[ToRouter]:
    """Return the message as it arrives; each part fits a message of gRPC."""
    data = [encode_report(part) for part in split_report(message)]
    for number, one in enumerate(data, start=2**63):
        one.number = number
        assert pb.WorkerFrame(data=one).ByteSize() <= MAX_GRPC_BYTES
    return [decode_report(one) for one in data]


def make_outputs(count: int) -> tuple[SequenceOutput, ...]:
    return tuple(
        SequenceOutput(request_id="r" * 64, index=index, token_ids=(1,), logprobs=(VOCABULARY,))
        for index in range(count)
    )


def test_tokens_of_several_sequences_that_ask_for_all_are_sent_in_parts() -> None:
    parts = sent(TokenBatch(outputs=make_outputs(3)))
    assert len(parts) == 3
    assert sum((part.outputs for part in parts if isinstance(part, TokenBatch)), ()) == make_outputs(3)


def test_first_tokens_that_ask_for_all_are_sent_in_parts() -> None:
    first = FirstToken(
        request_id="r", outputs=make_outputs(2), num_cached_tokens=3, queue_s=1.0, prefill_s=2.0
    )
    assert sent(first) == [msgspec.structs.replace(first, outputs=(output,)) for output in first.outputs]


def test_a_chunk_of_a_prompt_that_asks_for_all_is_sent_in_parts() -> None:
    told = PromptLogprobs(request_id="r", start=5, entries=(VOCABULARY, VOCABULARY))
    assert sent(told) == [replace(told, start=start, entries=(VOCABULARY,)) for start in (5, 6)]


def test_small_log_probabilities_share_a_message() -> None:
    position = PositionLogprobs(token_ids=(1, 2), logprobs=(-0.5, -1.0), ranks=(1, 2))
    output = SequenceOutput(request_id="r", index=0, token_ids=(1,), logprobs=(position,))
    for message in (
        TokenBatch(outputs=(output,) * 64),
        PromptLogprobs(request_id="r", start=1, entries=(position,) * 200),
    ):
        assert split_report(message) == (message,)
