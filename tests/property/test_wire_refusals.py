"""Messages that no router and no worker could mean are refused by field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError, shown_briefly
from baton_core.requests.sampling_params import MAX_N
from baton_core.sessions.control_messages import MAX_JSON_BYTES
from baton_core.worker.speculative_config import MAX_DRAFT_TOKENS
from baton_proto.v1 import session_pb2 as pb
from baton_service.wire.wire_commands import decode_command
from baton_service.wire.wire_reports import decode_report
from baton_service.wire.wire_worker import decode_hello, decode_load, encode_hello
from tests.builders import make_worker_info

VALID_SAMPLING = pb.Sampling(n=1, repetition_penalty=1.0, temperature=1.0, top_p=1.0, seed=1)


def make_spec(**changes: object) -> pb.RequestSpec:
    fields = {"request_id": "r", "prompt_token_ids": [1], "sampling": VALID_SAMPLING}
    return pb.RequestSpec(**(fields | changes))


def make_sampling(**changes: Any) -> pb.RouterData:
    sampling = pb.Sampling(n=1, repetition_penalty=1.0, temperature=1.0, top_p=1.0, seed=1)
    sampling.MergeFrom(pb.Sampling(**changes))
    return pb.RouterData(generate=pb.Generate(spec=make_spec(sampling=sampling)))


def sequence(*, token_ids: Sequence[int] = (), index: int = 0, **details: Any) -> pb.TokenBatch:
    return pb.TokenBatch(
        request_ids=["r"],
        indices=[index],
        lengths=[len(token_ids)],
        token_ids=token_ids,
        details=[pb.OutputDetails(**details)] if details else [],
    )


def make_control(argument_json: str) -> pb.Control:
    return pb.Control(control_id=1, action="sleep", argument_json=argument_json)


def make_result(result_json: str) -> pb.ControlResult:
    return pb.ControlResult(control_id=1, result_json=result_json)


def logprobs(token_ids: list[int], values: list[float], ranks: list[int]) -> pb.WorkerData:
    position = pb.TokenLogprobs(token_ids=token_ids, logprobs=values, ranks=ranks)
    return pb.WorkerData(token_batch=sequence(token_ids=[1], logprobs=[position]))


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
        ("bad_words", pb.RouterData(generate=pb.Generate(spec=make_spec(bad_words=[pb.Tokens()])))),
        (
            "thinking.end_token_ids",
            pb.RouterData(generate=pb.Generate(spec=make_spec(thinking=pb.Thinking(num_tokens=1)))),
        ),
        ("repetition_penalty", make_sampling(repetition_penalty=-1.0)),
        ("min_tokens", make_sampling(min_tokens=5, max_tokens=4)),
        ("logprobs", make_sampling(logprobs=-2)),
        ("prompt_logprobs", make_sampling(prompt_logprobs=-2)),
        ("skip_reading_prefix_cache", make_sampling(prompt_logprobs=0)),
        ("logprob_token_ids", make_sampling(logprob_token_ids=[2**31])),
        ("allowed_token_ids", make_sampling(allowed_token_ids=[2**31])),
        ("logit_bias[7]", make_sampling(logit_bias={7: float("nan")})),
        ("logits_processors", make_sampling(logits_processors=["name"])),
        ("extra_args", make_sampling(extra_args_json="[1]")),
        ("extra_args", make_sampling(extra_args_json="{")),
        ("structured_outputs", make_sampling(structured_outputs=pb.OutputGrammar())),
        ("structured_outputs", make_sampling(structured_outputs=pb.OutputGrammar(regex="a", grammar="b"))),
        (
            "repetition_detection.min_count",
            make_sampling(repetition_detection=pb.RepetitionRule(max_pattern_size=3)),
        ),
        ("source", pb.RouterData(reserve=pb.Reserve(spec=make_spec()))),
        ("source.worker_id", pb.RouterData(reserve=pb.Reserve(spec=make_spec(), source=pb.KVSource()))),
        ("request_id", pb.RouterData(start=pb.Start())),
        ("index", pb.RouterData(start=pb.Start(request_id="r", first_tokens=[{"index": MAX_N}]))),
        ("token_id", pb.RouterData(start=pb.Start(request_id="r", first_tokens=[{"token_id": 2**31}]))),
        ("indices", pb.RouterData(cancel=pb.Cancel(request_id="r", indices=[MAX_N]))),
        ("control_id", pb.RouterData(control=pb.Control(action="sleep"))),
        ("action", pb.RouterData(control=pb.Control(control_id=1, action="odd"))),
        ("timeout_s", pb.RouterData(control=pb.Control(control_id=1, action="sleep", timeout_s=-1.0))),
        ("argument", pb.RouterData(control=make_control("x" * (MAX_JSON_BYTES + 1)))),
        ("control_id", pb.WorkerData(control_result=pb.ControlResult())),
        ("code", pb.WorkerData(control_result=pb.ControlResult(control_id=1, code="odd"))),
        ("result", pb.WorkerData(control_result=make_result("x" * (MAX_JSON_BYTES + 1)))),
        ("message", pb.WorkerData(number=1)),
        ("request_id", pb.WorkerData(reserved=pb.Reserved())),
        ("code", pb.WorkerData(refused=pb.Refused(request_id="r", code="odd"))),
        ("code", pb.WorkerData(failed=pb.Failed(request_id="r"))),
        ("queue_s", pb.WorkerData(first_token=pb.FirstToken(request_id="r", queue_s=-1.0))),
        ("prefill_s", pb.WorkerData(first_token=pb.FirstToken(request_id="r", prefill_s=float("nan")))),
        ("transfer_s", pb.WorkerData(transferred=pb.Transferred(request_id="r", transfer_s=float("inf")))),
        ("token_batch", pb.WorkerData(token_batch=pb.TokenBatch(request_ids=["r"], token_ids=[1]))),
        ("token_batch", pb.WorkerData(token_batch=pb.TokenBatch(token_ids=[1]))),
        ("details.position", pb.WorkerData(token_batch=sequence(token_ids=[1], position=1))),
        ("request_id", pb.WorkerData(first_token=pb.FirstToken(outputs=[pb.SequenceOutput()]))),
        (
            "request_id",
            pb.WorkerData(
                token_batch=pb.TokenBatch(request_ids=[""], indices=[0], lengths=[1], token_ids=[1])
            ),
        ),
        ("index", pb.WorkerData(token_batch=sequence(index=MAX_N))),
        ("token_ids", pb.WorkerData(token_batch=sequence())),
        ("token_ids", pb.WorkerData(token_batch=sequence(token_ids=[2**31]))),
        ("finish_reason", pb.WorkerData(token_batch=sequence(token_ids=[1], finish_reason="odd"))),
        ("stop_token_id", pb.WorkerData(token_batch=sequence(token_ids=[1], stop_token_id=2**31))),
        ("logprobs", pb.WorkerData(token_batch=sequence(token_ids=[1], logprobs=[pb.TokenLogprobs()]))),
        ("logprobs", logprobs([1], [-1.0], [1, 2])),
        ("logprobs", logprobs([2**31], [-1.0], [1])),
        ("logprobs", logprobs([1], [float("nan")], [1])),
        ("request_id", pb.WorkerData(prompt_logprobs=pb.PromptLogprobs(start=1))),
        ("start", pb.WorkerData(prompt_logprobs=pb.PromptLogprobs(request_id="r"))),
        ("entries", pb.WorkerData(prompt_logprobs={"request_id": "r", "start": 1, "lengths": [1]})),
    ],
)
def test_what_means_nothing_is_refused_by_field(field: str, data: pb.RouterData | pb.WorkerData) -> None:
    decode: Callable[..., object] = decode_command if isinstance(data, pb.RouterData) else decode_report
    with pytest.raises(InvalidRequestError) as caught:
        decode(data)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "field",
    [
        *("worker_id", "epoch", "role", "identity", "max_model_len", "vocab_size"),
        *("num_blocks", "max_num_seqs", "block_bytes", "peer_address"),
    ],
)
def test_a_registration_without_a_field_is_refused(field: str) -> None:
    identity = {
        "weights": "w",
        "dtype": "d",
        "kv_layout": "k",
        "block_size": 1,
        "transport": "t",
        "kv_windows": [0],
        "description": pb.ModelDescription(),
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
        block_bytes=1,
        peer_address="tcp://h:1",
    )
    decode_hello(hello)
    hello.ClearField(field)
    with pytest.raises(InvalidRequestError) as caught:
        decode_hello(hello)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", "a\nb"),
        ("worker_id", "w" * 129),
        *(
            ("peer_address", value)
            for value in ("garbage", "tcp://1.2.3.4", "tcp://h:x", "tcp://h h:1", "tcp://h:1#zz", "tcp://*:1")
        ),
    ],
)
def test_a_registration_with_an_unusable_name_or_address_is_refused(field: str, value: str) -> None:
    hello = encode_hello(make_worker_info())
    setattr(hello, field, value)
    with pytest.raises(InvalidRequestError) as caught:
        decode_hello(hello)
    assert (caught.value.field, caught.value.shown) == (field, shown_briefly(value))


@pytest.mark.parametrize(
    ("field", "description"),
    [
        ("description", None),
        ("identity.description.config", pb.ModelDescription(config={f"key{n}": "" for n in range(513)})),
        ("identity.description.config", pb.ModelDescription(config={"k" * 129: "1"})),
        ("identity.description.config", pb.ModelDescription(config={"k": "1" * 129})),
    ],
)
def test_a_model_is_described_within_bounds(field: str, description: pb.ModelDescription | None) -> None:
    hello = encode_hello(make_worker_info())
    decode_hello(hello)
    if description is None:
        hello.identity.ClearField("description")
    else:
        hello.identity.description.CopyFrom(description)
    with pytest.raises(InvalidRequestError) as caught:
        decode_hello(hello)
    assert caught.value.field == field


def test_a_step_age_that_is_no_duration_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="step_age_s"):
        decode_load(pb.Load(step_age_s=-0.5))


def test_a_worker_reports_no_more_positions_of_drafts_than_there_are() -> None:
    figures = pb.Figures(num_accepted_per_position=[1] * 1000)
    load = decode_load(pb.Load(figures=figures))
    assert load.figures is not None
    assert len(load.figures.num_accepted_per_position) == MAX_DRAFT_TOKENS
