"""Clients that send anything: each gets a clean status or its tokens, and nobody else notices."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

import grpc

from baton import LLM
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import Cluster

NUM_HOSTILE: Final = 400
NUM_AT_ONCE: Final = 4
NUM_NEIGHBOUR_TOKENS: Final = 400
REQUEST_IDS: Final = ("", "r1", "r2", "a\nb", "\0", "x" * 128, "x" * 129, "é" * 64)
CLEAN: Final = {
    "OK",
    "ALREADY_EXISTS",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
}
PATIENCE_S: Final = 0.3

UINTS: Final = (0, 1, 2, 3, 64, 65, 1024, 4095, 4096, 2**31 - 1, 2**31, 2**32 - 1)
DOUBLES: Final = (0.0, -0.0, 1.0, 0.5, 1e-300, 1e308, -1.0, 2.0, math.nan, math.inf, -math.inf, 5e-324)
INTS: Final = (-(2**31), -2, -1, 0, 1, 50, 2**31 - 1)
LONGS: Final = (-(2**63), -1, 0, 1, 2**63 - 1)
TEXTS: Final = ("", "a", "\0", "\ufeff", "\U0010ffff", "e\u0301" * 50, "The os module " * 2000, "<s>" * 300)
FORMS: Final[tuple[dict[str, Any], ...]] = (
    *({}, {"json_object": True}, {"json_object": False}, {"disable_any_whitespace": True}),
    *(
        {"json": text}
        for text in ("{}", "", "{", "[]", '{"type": "integer"}', '{"type": "robot"}', "[" * 60_000)
    ),
    *({"regex": text} for text in ("[0-9]+", "(", "(?=a)", "(a{1,999}){1,999}", "", "a" * 70_000)),
    *({"grammar": text} for text in ('root ::= "a"', "root ::= root", "start: /a+/", "root ::=", "(" * 500)),
    *(
        {"structural_tag": text}
        for text in ("{}", "[]", '{"format": {"type": "any_text"}}', '{"triggers": [""]}')
    ),
    *(
        {"choice": pb.StructuredOutputs.Choices(choices=texts)}
        for texts in ([], [""], ["a", "b"], ["x"] * 5000)
    ),
)
NAMES: Final = ("", "other", "\n", "x" * 10_000)


def draw_generate(random: Random) -> pb.GenerateRequest:
    pick = random.choice
    request = pb.GenerateRequest(request_id=pick(REQUEST_IDS), sampling_params=draw_params(random))
    if random.random() < 0.1:
        request.model = pick(NAMES)
    if random.random() < 0.1:
        request.priority = pick(INTS)
    if random.random() < 0.2:
        request.cache_salt = pick(REQUEST_IDS)
    if random.random() < 0.1:
        request.truncate_prompt_tokens = pick(INTS)
    if random.random() < 0.1:
        request.add_special_tokens = pick((False, True))
    match random.randrange(5):
        case 0:
            request.text = pick(TEXTS)
        case 1:
            request.token_ids.ids.extend(draw_ids(random))
        case 2:
            request.chat.CopyFrom(draw_chat(random))
        case 3:
            request.text = "The os module"
    return request


def draw_params(random: Random) -> pb.SamplingParams:
    """Few fields at a time, so that some requests are valid."""
    drawn: dict[str, Callable[[], Any]] = {
        "n": lambda: random.choice(UINTS),
        "temperature": lambda: random.choice(DOUBLES),
        "top_p": lambda: random.choice(DOUBLES),
        "top_k": lambda: random.choice(INTS),
        "min_p": lambda: random.choice(DOUBLES),
        "seed": lambda: random.choice(LONGS),
        "stop": lambda: random.choice(([""], ["a"] * 33, ["\0"], ["x" * 1025], ["e"] * 32)),
        "stop_token_ids": lambda: draw_ids(random),
        "ignore_eos": lambda: True,
        "max_tokens": lambda: random.choice(UINTS),
        "include_stop_str_in_output": lambda: True,
        "skip_special_tokens": lambda: False,
        "presence_penalty": lambda: random.choice(DOUBLES),
        "frequency_penalty": lambda: random.choice(DOUBLES),
        "repetition_penalty": lambda: random.choice(DOUBLES),
        "min_tokens": lambda: random.choice(UINTS),
        "logprobs": lambda: random.choice(INTS),
        "prompt_logprobs": lambda: random.choice(INTS),
        "logprob_token_ids": lambda: draw_ids(random),
        "detokenize": lambda: False,
        "spaces_between_special_tokens": lambda: False,
        "logit_bias": lambda: {token_id: random.choice(DOUBLES) for token_id in draw_ids(random)},
        "allowed_token_ids": lambda: draw_ids(random),
        "bad_words": lambda: random.choice(([""], [" "], ["\0"], ["the"], ["a b c " * 100], ["e"] * 257)),
        "structured_outputs": lambda: pb.StructuredOutputs(**random.choice(FORMS)),
        "repetition_detection": lambda: pb.RepetitionDetection(
            max_pattern_size=random.choice(UINTS),
            min_pattern_size=random.choice((0, 1, 2)),
            min_count=random.choice(UINTS),
        ),
        "thinking_token_budget": lambda: random.choice(UINTS),
        "logits_processors": lambda: random.choice((["os:system"], ["a"], ["a:b"] * 17, [""])),
        "extra_args_json": lambda: random.choice(("{}", "[]", "{", "NaN", "[" * 5000, '{"a": 1}', "")),
        "skip_reading_prefix_cache": lambda: random.random() < 0.5,
    }
    names = random.sample(sorted(drawn), k=random.randrange(5))
    return pb.SamplingParams(**{name: drawn[name]() for name in names})


def draw_ids(random: Random) -> list[int]:
    return random.choices(random.choice(((0, 1, 4095), UINTS)), k=random.choice((0, 1, 5, 1024, 1025, 5000)))


def draw_chat(random: Random) -> pb.Chat:
    roles = random.choice((("user",), ("user", "assistant", "system", "robot", "", "\0")))
    size = random.choice((0, 1, 3, 5000))
    content = random.choice(TEXTS) if size < 10 else "a"
    return pb.Chat(messages=[pb.ChatMessage(role=random.choice(roles), content=content) for _ in range(size)])


def draw_tokenize(random: Random) -> pb.TokenizeRequest:
    request = pb.TokenizeRequest(model=random.choice((*NAMES, "", "", "")))
    match random.randrange(3):
        case 0:
            request.text = random.choice((*TEXTS, "a" * 5 * 2**20))
        case 1:
            request.chat.CopyFrom(draw_chat(random))
    if random.random() < 0.5:
        request.add_special_tokens = random.random() < 0.5
    if random.random() < 0.5:
        request.add_generation_prompt = random.random() < 0.5
    return request


def draw_detokenize(random: Random) -> pb.DetokenizeRequest:
    model = random.choice((*NAMES, "", "", ""))
    return pb.DetokenizeRequest(model=model, token_ids=draw_ids(random), skip_special_tokens=True)


def damage(random: Random, message: bytes) -> bytes:
    """Random bytes, or a message with a few of its bytes changed, or cut short."""
    if not message or random.random() < 0.3:
        return random.randbytes(random.choice((1, 7, 300)))
    bytes_ = bytearray(message)
    for _ in range(random.randrange(1, 5)):
        bytes_[random.randrange(len(bytes_))] = random.randrange(256)
    return bytes(bytes_[: random.randrange(1, len(bytes_) + 1)])


def draw_call(random: Random) -> tuple[str, bytes]:
    """A method and the bytes to send it, a quarter of them damaged."""
    method = random.choices(("Generate", "Tokenize", "Detokenize", "GetModelInfo"), weights=(6, 2, 2, 1))[0]
    match method:
        case "Generate":
            message = draw_generate(random).SerializeToString()
        case "Tokenize":
            message = draw_tokenize(random).SerializeToString()
        case "Detokenize":
            message = draw_detokenize(random).SerializeToString()
        case _:
            message = b""
    return method, damage(random, message) if random.random() < 0.25 else message


async def status_of(channel: grpc.aio.Channel, method: str, message: bytes) -> tuple[str, str]:
    """Send the bytes and read the whole answer; returns the status and its text."""
    path = f"/baton.v1.Baton/{method}"
    try:
        if method != "Generate":
            await channel.unary_unary(path)(message, timeout=PATIENCE_S)
            return "OK", ""
        events = channel.unary_stream(path)(message, timeout=PATIENCE_S)
        last = [pb.GenerateEvent.FromString(event) async for event in events][-1]
        assert last.HasField("finished")
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


async def attack(address: str, neighbour: pb.GenerateRequest) -> tuple[list[pb.GenerateEvent], list[str]]:
    """Send everything beside the neighbour; returns the neighbour's events and the statuses of the others."""
    random, statuses = Random(11), []
    calls = iter([draw_call(random) for _ in range(NUM_HOSTILE)])
    options = [("grpc.max_send_message_length", -1)]
    async with asyncio.timeout(90), grpc.aio.insecure_channel(address, options) as channel:

        async def send_some() -> None:
            for method, message in calls:
                code, details = await status_of(channel, method, message)
                assert code in CLEAN, (code, details, method, message)
                if code == "INVALID_ARGUMENT":
                    assert re.match(r"[\w.\[\]-]+ is .*; allowed: ", details, re.DOTALL), (
                        details,
                        method,
                        message,
                    )
                statuses.append(code)

        async def listen() -> list[pb.GenerateEvent]:
            return [event async for event in BatonStub(channel).Generate(neighbour)]

        listening = asyncio.create_task(listen())
        await asyncio.gather(*(send_some() for _ in range(NUM_AT_ONCE)))
        return await listening, statuses


def test_hostile_requests_end_cleanly_and_disturb_nobody(cluster: Cluster, llm: LLM) -> None:
    prompt, params = draw_prompt(80, seed=21), greedy(NUM_NEIGHBOUR_TOKENS)
    events, statuses = asyncio.run(attack(cluster.address, ask(prompt, params)))
    outputs, _ = answer(events)
    assert outputs == llm.generate(prompt, params, use_tqdm=False)[0].outputs
    assert len(statuses) == NUM_HOSTILE
    assert statuses.count("OK") > NUM_HOSTILE // 10
    assert statuses.count("INVALID_ARGUMENT") > NUM_HOSTILE // 3
    cluster.wait_until_idle()
    for name in REQUEST_IDS[1:3]:  # the router has no request of these names left
        request = ask(prompt, greedy(1))
        request.request_id = name
        answer(cluster.stub.Generate(request))
    assert "Traceback" not in cluster.log.read_text()
