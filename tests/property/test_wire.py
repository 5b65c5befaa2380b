"""Every message of a session survives protobuf, and what means nothing is refused by field."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import get_args

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from baton_core.errors import ErrorCode, InvalidRequestError
from baton_core.finish import FinishReason
from baton_core.router_messages import (
    CacheDelta,
    Cancel,
    Failed,
    FirstToken,
    FirstTokenOf,
    Generate,
    KVSource,
    Prefill,
    Refused,
    RequestSpec,
    Reserve,
    Reserved,
    SequenceOutput,
    Start,
    TokenBatch,
    ToRouter,
    ToWorker,
    Transferred,
)
from baton_core.sampling_params import SamplingParams
from baton_core.worker_info import ModelIdentity, Role, WorkerInfo, WorkerLoad
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire import (
    decode_command,
    decode_hello,
    decode_load,
    decode_report,
    encode_command,
    encode_hello,
    encode_load,
    encode_report,
    merge_reports,
    split_report,
)

names = st.text(min_size=1, max_size=20)
counts = st.integers(0, 2**32 - 1)
positive = st.integers(1, 2**32 - 1)
epochs = st.integers(1, 2**64 - 1)
token_id = st.integers(0, 2**31 - 1)
token_ids = st.lists(token_id, max_size=20).map(tuple)
indices = st.integers(0, 63)
seconds = st.floats(0, 1e9)
hashes = st.lists(st.binary(min_size=16, max_size=16), max_size=5).map(tuple)

params = st.builds(
    SamplingParams,
    n=st.integers(1, 64),
    temperature=st.floats(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(-1, 2**31 - 1),
    min_p=st.floats(0, 1),
    seed=st.integers(-(2**63), 2**63 - 1).filter(lambda seed: seed != -1),  # -1 asks for none
    stop_token_ids=token_ids,
    ignore_eos=st.booleans(),
    max_tokens=st.none() | st.integers(1, 2**31),
)
specs = st.builds(
    RequestSpec,
    request_id=names,
    prompt_token_ids=st.lists(token_id, min_size=1, max_size=20).map(tuple),
    params=params,
    cache_salt=st.text(max_size=20),
    priority=st.integers(-(2**31), 2**31 - 1),
)
sources = st.builds(
    KVSource, worker_id=names, epoch=epochs, peer_address=st.text(max_size=20), kv_description=st.binary()
)
outputs = st.builds(
    SequenceOutput,
    request_id=names,
    index=indices,
    token_ids=st.lists(token_id, min_size=1, max_size=20).map(tuple),
    finish_reason=st.none() | st.sampled_from(FinishReason),
)
output_lists = st.lists(outputs, max_size=5).map(tuple)
first_tokens = st.builds(FirstTokenOf, index=indices, token_id=token_id)

COMMANDS = {
    Generate: st.builds(Generate, spec=specs),
    Prefill: st.builds(Prefill, spec=specs),
    Reserve: st.builds(Reserve, spec=specs, source=sources),
    Start: st.builds(Start, request_id=names, first_tokens=st.lists(first_tokens, max_size=5).map(tuple)),
    Cancel: st.builds(Cancel, request_id=names, indices=st.lists(indices, max_size=5).map(tuple)),
}
codes = st.sampled_from(ErrorCode)
REPORTS = {
    Reserved: st.builds(Reserved, request_id=names, num_cached_tokens=counts),
    Refused: st.builds(Refused, request_id=names, code=codes, message=st.text()),
    FirstToken: st.builds(
        FirstToken,
        request_id=names,
        outputs=output_lists,
        num_cached_tokens=counts,
        queue_s=seconds,
        prefill_s=seconds,
    ),
    TokenBatch: st.builds(TokenBatch, outputs=output_lists),
    Transferred: st.builds(
        Transferred,
        request_id=names,
        num_blocks=counts,
        num_bytes=st.integers(0, 2**64 - 1),
        transfer_s=seconds,
        num_recomputed_tokens=counts,
    ),
    Failed: st.builds(Failed, request_id=names, code=codes, message=st.text()),
    CacheDelta: st.builds(CacheDelta, stored=hashes, removed=hashes),
}
infos = st.builds(
    WorkerInfo,
    worker_id=names,
    epoch=epochs,
    role=st.sampled_from(Role),
    identity=st.builds(
        ModelIdentity,
        model=names,
        dtype=names,
        kv_layout=names,
        block_size=positive,
        transport=names,
        kv_windows=st.lists(st.none() | positive, min_size=1, max_size=4).map(tuple),
        protocol_version=positive,
    ),
    max_model_len=positive,
    vocab_size=positive,
    num_blocks=positive,
    max_num_seqs=positive,
    peer_address=st.text(max_size=20),
    kv_description=st.binary(max_size=50),
)
loads = st.builds(
    WorkerLoad,
    num_running=counts,
    num_waiting=counts,
    num_queued_tokens=counts,
    num_available_blocks=counts,
    step_age_s=seconds,
)


def test_every_message_has_a_strategy() -> None:
    assert set(COMMANDS) == set(get_args(ToWorker))
    assert set(REPORTS) == set(get_args(ToRouter))


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


def make_generate(**changes: object) -> Generate:
    spec = RequestSpec(request_id="r", prompt_token_ids=(1, 2), params=SamplingParams(seed=3))
    return Generate(spec=replace(spec, **changes))


def test_text_stays_at_the_router() -> None:
    params = SamplingParams(seed=1, stop=("end",), include_stop_str_in_output=True, skip_special_tokens=False)
    received = decode_command(encode_command(make_generate(params=params)))
    assert isinstance(received, Generate)
    assert received.spec.params == SamplingParams(seed=1)


def test_the_largest_top_k_means_all_tokens_on_the_wire_too() -> None:
    data = encode_command(make_generate(params=SamplingParams(seed=1, top_k=2**31)))
    assert data.generate.spec.sampling.top_k == 2**31 - 1


def test_a_request_without_a_seed_is_not_sent() -> None:
    with pytest.raises(InvalidRequestError, match="seed is None"):
        encode_command(make_generate(params=SamplingParams()))


def test_a_command_whose_seed_stands_for_none_is_refused() -> None:
    data = encode_command(make_generate(params=SamplingParams(seed=1)))
    data.generate.spec.sampling.seed = -1
    with pytest.raises(InvalidRequestError, match="seed is -1"):
        decode_command(data)


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


VALID_SAMPLING = pb.Sampling(n=1, temperature=1.0, top_p=1.0, seed=1)


def make_spec(**changes: object) -> pb.RequestSpec:
    fields = {"request_id": "r", "prompt_token_ids": [1], "sampling": VALID_SAMPLING}
    return pb.RequestSpec(**(fields | changes))


def sequence(**changes: object) -> pb.TokenBatch:
    return pb.TokenBatch(outputs=[pb.SequenceOutput(**({"request_id": "r"} | changes))])


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("message", pb.RouterData(number=1)),
        ("spec", pb.RouterData(generate=pb.Generate())),
        ("sampling", pb.RouterData(prefill=pb.Prefill(spec=pb.RequestSpec(request_id="r")))),
        ("request_id", pb.RouterData(generate=pb.Generate(spec=make_spec(request_id="")))),
        ("prompt_token_ids", pb.RouterData(generate=pb.Generate(spec=make_spec(prompt_token_ids=[])))),
        ("prompt_token_ids", pb.RouterData(generate=pb.Generate(spec=make_spec(prompt_token_ids=[2**31])))),
        ("n", pb.RouterData(generate=pb.Generate(spec=make_spec(sampling=pb.Sampling())))),
        ("source", pb.RouterData(reserve=pb.Reserve(spec=make_spec()))),
        ("source.worker_id", pb.RouterData(reserve=pb.Reserve(spec=make_spec(), source=pb.KVSource()))),
        ("request_id", pb.RouterData(start=pb.Start())),
        ("index", pb.RouterData(start=pb.Start(request_id="r", first_tokens=[{"index": 64}]))),
        ("token_id", pb.RouterData(start=pb.Start(request_id="r", first_tokens=[{"token_id": 2**31}]))),
        ("indices", pb.RouterData(cancel=pb.Cancel(request_id="r", indices=[64]))),
        ("message", pb.WorkerData(number=1)),
        ("request_id", pb.WorkerData(reserved=pb.Reserved())),
        ("code", pb.WorkerData(refused=pb.Refused(request_id="r", code="odd"))),
        ("code", pb.WorkerData(failed=pb.Failed(request_id="r"))),
        ("queue_s", pb.WorkerData(first_token=pb.FirstToken(request_id="r", queue_s=-1.0))),
        ("prefill_s", pb.WorkerData(first_token=pb.FirstToken(request_id="r", prefill_s=float("nan")))),
        ("transfer_s", pb.WorkerData(transferred=pb.Transferred(request_id="r", transfer_s=float("inf")))),
        ("request_id", pb.WorkerData(token_batch=pb.TokenBatch(outputs=[pb.SequenceOutput()]))),
        ("index", pb.WorkerData(token_batch=sequence(index=64))),
        ("token_ids", pb.WorkerData(token_batch=sequence())),
        ("token_ids", pb.WorkerData(token_batch=sequence(token_ids=[2**31]))),
        ("finish_reason", pb.WorkerData(token_batch=sequence(token_ids=[1], finish_reason="odd"))),
    ],
)
def test_what_means_nothing_is_refused_by_field(field: str, data: pb.RouterData | pb.WorkerData) -> None:
    decode: Callable[..., object] = decode_command if isinstance(data, pb.RouterData) else decode_report
    with pytest.raises(InvalidRequestError) as caught:
        decode(data)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "field",
    ["worker_id", "epoch", "role", "identity", "max_model_len", "vocab_size", "num_blocks", "max_num_seqs"],
)
def test_a_registration_without_a_field_is_refused(field: str) -> None:
    identity = {
        "model": "m",
        "dtype": "d",
        "kv_layout": "k",
        "block_size": 1,
        "transport": "t",
        "kv_windows": [0],
    }
    hello = pb.Hello(
        worker_id="w1",
        epoch=1,
        role="mixed",
        identity=pb.Identity(**identity, protocol_version=1),
        max_model_len=1,
        vocab_size=1,
        num_blocks=1,
        max_num_seqs=1,
    )
    decode_hello(hello)
    hello.ClearField(field)
    with pytest.raises(InvalidRequestError) as caught:
        decode_hello(hello)
    assert caught.value.field == field


def test_a_step_age_that_is_no_duration_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="step_age_s"):
        decode_load(pb.Load(step_age_s=-0.5))
