"""Protobuf from clients, routers and workers: what comes is read, or refused with an error of ours."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from baton_core.errors import BatonError, InvalidRequestError
from baton_core.sessions.router_messages import RequestSpec
from baton_proto.v1 import baton_pb2, session_pb2
from baton_router.grpc.client_messages import read_request, read_tokenize_prompt
from baton_router.requests.request_limits import RequestLimits
from baton_router.requests.request_reader import PromptReader
from baton_router.requests.resume_tokens import Fingerprints, ResumeTicket, ResumeTokens
from baton_router.requests.served_adapters import ServedAdapters
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from baton_service.wire.wire_commands import decode_command, encode_command
from baton_service.wire.wire_reports import decode_report, encode_report
from baton_service.wire.wire_worker import decode_hello, decode_load, encode_hello, encode_load
from tests.fuzz.hostile_bytes import hostile, within_memory
from tests.property.wire_messages import COMMANDS, REPORTS, infos, loads

MODEL: Final = read_model_folder(Path(__file__).parents[2] / "api" / "baton" / "bundled")
READER: Final = PromptReader(
    ServedAdapters(("m",)), MODEL, Tokenizer(MODEL), RequestLimits(enable_prompt_embeds=True)
)
NUMBERS: Final = st.integers(0, 3) | st.integers(0, 2**31 - 1)
FLOATS: Final = st.floats(width=32)
TEXTS: Final = st.text(max_size=20)
IDS: Final = st.lists(NUMBERS, max_size=5)


def some_of(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages with few of the fields, so that some are valid."""
    return st.lists(st.sampled_from(sorted(fields)), max_size=3).flatmap(
        lambda names: st.builds(kind, **{name: fields[name] for name in names})
    )


FORMS: Final = some_of(
    baton_pb2.StructuredOutputs,
    json=st.sampled_from(["{}", '{"type": "string", "pattern": "a{1,9}"}', '{"$ref": "#"}', "["]),
    regex=st.sampled_from(["a+", "(a|b){3}", "((a*)*)*b", "[", "(?=a)"]),
    grammar=st.sampled_from(['root ::= "a"', "start: /a+/", "root ::= root"]),
    structural_tag=st.sampled_from(["{}", '{"format": {"type": "any_text"}}']),
    json_object=st.booleans(),
)
PARAMS: Final = some_of(
    baton_pb2.SamplingParams,
    **dict.fromkeys(("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs"), NUMBERS),
    **dict.fromkeys(("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"), FLOATS),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "logprob_token_ids"), IDS),
    **{name: st.lists(TEXTS, max_size=3) for name in ("stop", "bad_words", "logits_processors")},
    logit_bias=st.dictionaries(NUMBERS, FLOATS, max_size=3),
    structured_outputs=FORMS,
    extra_args_json=TEXTS,
)
MESSAGES: Final = st.lists(
    st.builds(baton_pb2.ChatMessage, role=st.sampled_from(["user", "system", "x"]), content=TEXTS), max_size=3
)
EMBEDS: Final = st.builds(
    baton_pb2.PromptEmbeds,
    start=st.integers(0, 9),
    hidden_size=st.sampled_from([0, 1, 256, 2**32 - 1]),
    dtype=st.sampled_from(["float32", "bfloat16", "float64", ""]),
    data=st.sampled_from([b"", bytes(1024), bytes(512), bytes(513), b"\xff" * 1024]),
)
PROMPTS: Final = st.one_of(
    st.builds(dict, text=TEXTS),
    st.builds(dict, token_ids=st.builds(baton_pb2.TokenIds, ids=IDS)),
    st.builds(dict, chat=st.builds(baton_pb2.Chat, messages=MESSAGES)),
    st.builds(
        dict,
        token_ids=st.none() | st.builds(baton_pb2.TokenIds, ids=IDS),
        prompt_embeds=st.lists(EMBEDS, max_size=3),
    ),
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    names = {"request_id": draw(TEXTS), "cache_salt": draw(TEXTS), "resume_token": draw(TEXTS)}
    request = baton_pb2.GenerateRequest(**draw(PROMPTS), **names, sampling_params=draw(PARAMS))
    return request.SerializeToString()


def parsed(kind: type[Message], content: bytes) -> Any:
    return kind.FromString(content)  # type: ignore[attr-defined]


@given(content=hostile(requests()))
def test_a_clients_request(content: bytes) -> None:
    def read(content: bytes) -> RequestSpec:
        request = read_request(parsed(baton_pb2.GenerateRequest, content))
        return READER.read(request, max_model_len=2048)

    spec = within_memory(read, content, DecodeError, BatonError)
    assert spec is None or 0 < len(spec.prompt_token_ids) < 2048


@given(content=hostile(requests()))
def test_a_clients_text_to_be_tokenized(content: bytes) -> None:
    read = lambda content: read_tokenize_prompt(parsed(baton_pb2.TokenizeRequest, content))  # noqa: E731
    within_memory(read, content, DecodeError, BatonError)


TOKENS: Final = ResumeTokens()
TICKET: Final = ResumeTicket(
    request_id="r" * 20,
    seed=1,
    created_s=1000,
    fingerprints=Fingerprints(prompt=bytes(8), parameters=bytes(8), model=bytes(8), owner=bytes(8)),
)
TICKET_BYTES: Final = urlsafe_b64decode(TOKENS.write(TICKET) + "==")[:-16]


@given(
    token=st.text(max_size=200)
    | hostile(st.just(TICKET_BYTES)).map(lambda said: urlsafe_b64encode(said + TOKENS._seal(said)).decode()),
    now_s=st.floats(0, 1e12),
)
def test_a_resume_token_that_whoever_knows_the_secret_forges(token: str, now_s: float) -> None:
    for one in (token, token.rstrip("=")):
        with suppress(InvalidRequestError):
            assert -(2**63) <= TOKENS.read(one, now_s).seed < 2**63


COMMAND_BYTES: Final = st.one_of(*COMMANDS.values()).map(lambda one: encode_command(one).SerializeToString())
REPORT_BYTES: Final = st.one_of(*REPORTS.values()).map(lambda one: encode_report(one).SerializeToString())
HELLO_BYTES: Final = infos.map(
    lambda info: encode_hello(info, router_epoch=1, received=1).SerializeToString()
)
LOAD_BYTES: Final = loads.map(lambda load: encode_load(load).SerializeToString())


@given(content=hostile(COMMAND_BYTES))
def test_a_routers_command(content: bytes) -> None:
    read = lambda content: decode_command(parsed(session_pb2.RouterData, content))  # noqa: E731
    within_memory(read, content, DecodeError, BatonError)


@given(content=hostile(REPORT_BYTES))
def test_a_workers_report(content: bytes) -> None:
    read = lambda content: decode_report(parsed(session_pb2.WorkerData, content))  # noqa: E731
    within_memory(read, content, DecodeError, BatonError)


@given(content=hostile(HELLO_BYTES))
def test_a_workers_registration(content: bytes) -> None:
    read = lambda content: decode_hello(parsed(session_pb2.Hello, content))  # noqa: E731
    within_memory(read, content, DecodeError, BatonError)


@given(content=hostile(LOAD_BYTES))
def test_a_workers_load(content: bytes) -> None:
    read = lambda content: decode_load(parsed(session_pb2.Load, content))  # noqa: E731
    within_memory(read, content, DecodeError, BatonError)
