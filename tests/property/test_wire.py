"""Every message of a session survives protobuf, and what is damaged is taken or refused by field."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import Any, get_args

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import RequestOutputKind, SamplingParams
from baton_core.sessions.router_messages import Generate, ToRouter, ToWorker
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_commands import decode_command, encode_command
from baton_service.wire.wire_reports import decode_report, encode_report
from baton_service.wire.wire_worker import decode_hello, decode_load, encode_hello, encode_load
from tests.property.wire_messages import (
    AT_THE_ROUTER,
    COMMANDS,
    REPORTS,
    SENT,
    epochs,
    infos,
    loads,
    make_generate,
)


def test_every_message_has_a_strategy() -> None:
    assert set(COMMANDS) == set(get_args(ToWorker))
    assert set(REPORTS) == set(get_args(ToRouter))


def test_every_parameter_is_sent_or_is_the_routers() -> None:
    assert set(SENT) | AT_THE_ROUTER == {field.name for field in fields(SamplingParams)}
    assert not set(SENT) & AT_THE_ROUTER


@pytest.mark.parametrize("kind", COMMANDS)
@given(data=st.data())
def test_a_command_survives_the_wire(kind: type, data: st.DataObject) -> None:
    message = data.draw(COMMANDS[kind])
    received = pb.RouterData.FromString(encode_command(message).SerializeToString())
    assert decode_command(received) == message


@pytest.mark.parametrize("kind", REPORTS)
@given(data=st.data())
def test_a_report_survives_the_wire(kind: type, data: st.DataObject) -> None:
    message = data.draw(REPORTS[kind])
    received = pb.WorkerData.FromString(encode_report(message).SerializeToString())
    assert decode_report(received) == message


@given(info=infos, router_epoch=epochs, received=st.integers(0, 2**64 - 1))
def test_a_registration_survives_the_wire(info: WorkerInfo, router_epoch: int, received: int) -> None:
    hello = encode_hello(info, router_epoch=router_epoch, received=received)
    arrived = pb.Hello.FromString(hello.SerializeToString())
    assert decode_hello(arrived) == info
    assert (arrived.router_epoch, arrived.received) == (router_epoch, received)


@given(load=loads)
def test_a_load_survives_the_wire(load: WorkerLoad) -> None:
    assert decode_load(pb.Load.FromString(encode_load(load).SerializeToString())) == load


@given(message=st.one_of(*COMMANDS.values(), *REPORTS.values()), data=st.data())
def test_a_damaged_message_is_taken_or_refused_by_field(
    message: ToWorker | ToRouter, data: st.DataObject
) -> None:
    is_command = type(message) in COMMANDS
    content = bytearray((encode_command if is_command else encode_report)(message).SerializeToString())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    received = pb.RouterData() if is_command else pb.WorkerData()
    with suppress(DecodeError):  # not protobuf: gRPC refuses it before it gets here
        received.ParseFromString(bytes(content))
        with suppress(InvalidRequestError):
            (decode_command if is_command else decode_report)(received)


def received_params(params: SamplingParams) -> SamplingParams:
    received = decode_command(encode_command(make_generate(params=params)))
    assert isinstance(received, Generate)
    return received.spec.params


def test_text_stays_at_the_router() -> None:
    params = SamplingParams(
        seed=1,
        stop=("end",),
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        flat_logprobs=True,
        output_kind=RequestOutputKind.DELTA,
        bad_words=("word",),
        thinking_token_budget=5,
    )
    assert received_params(params) == SamplingParams(seed=1, skip_reading_prefix_cache=False)
    assert received_params(SamplingParams(seed=1, detokenize=False)).detokenize


@pytest.mark.parametrize("field", ["top_k", "logprobs", "prompt_logprobs"])
def test_the_largest_number_means_all_tokens_on_the_wire_too(field: str) -> None:
    assert getattr(received_params(SamplingParams(seed=1, **{field: 2**31})), field) == 2**31 - 1


@pytest.mark.parametrize(
    ("changes", "is_skipped"),
    [
        ({}, False),
        ({"prompt_logprobs": 0}, True),
        ({"skip_reading_prefix_cache": False}, False),
        ({"skip_reading_prefix_cache": True}, True),
    ],
)
def test_whether_cached_prefixes_are_read_is_decided_at_the_router(
    changes: dict[str, Any], is_skipped: bool
) -> None:
    params = received_params(SamplingParams(seed=1, **changes))
    assert params.skip_reading_prefix_cache is is_skipped


@pytest.mark.parametrize(
    "field", ["max_tokens", "logprobs", "prompt_logprobs", "allowed_token_ids", "logprob_token_ids"]
)
def test_what_is_absent_stays_absent(field: str) -> None:
    assert getattr(received_params(SamplingParams(seed=1, **{field: None})), field) is None


def test_a_function_does_not_travel() -> None:
    def processor(*args: object) -> None: ...

    params = SamplingParams(seed=1, logits_processors=("package.module:name", processor))
    with pytest.raises(
        InvalidRequestError, match=r"logits_processors is <function .*; allowed: names such as"
    ):
        encode_command(make_generate(params=params))


def test_a_request_without_a_seed_is_not_sent() -> None:
    with pytest.raises(InvalidRequestError, match="seed is None"):
        encode_command(make_generate(params=SamplingParams()))


def test_a_command_whose_seed_stands_for_none_is_refused() -> None:
    data = encode_command(make_generate(params=SamplingParams(seed=1)))
    data.generate.spec.sampling.seed = -1
    with pytest.raises(InvalidRequestError, match="seed is -1"):
        decode_command(data)
