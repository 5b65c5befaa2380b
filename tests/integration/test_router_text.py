"""The model's tokenizer and names through a real router, which needs no worker for them."""

from __future__ import annotations

from baton_proto.v1 import baton_pb2 as pb
from tests.integration.router_cluster import (
    ANSWER,
    TEXT,
    TOKENIZER,
    ask,
    cluster,
    error_of,
    tokens_of,
    unary_error,
)
from tests.integration.scripted_worker import ScriptedWorker


async def test_a_text_goes_to_ids_and_back_without_a_worker() -> None:
    async with cluster() as stub:
        tokens = await stub.Tokenize(pb.TokenizeRequest(text=TEXT))
        assert tuple(tokens.token_ids) == ANSWER
        assert (tokens.count, tokens.max_model_len) == (len(ANSWER), 2048)
        text = await stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))
        assert (text.text, text.count) == (TEXT, len(ANSWER))


async def test_a_chat_has_the_tokens_that_its_prompt_will_have() -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    async with cluster(ScriptedWorker("w1", answers=[[5]])) as stub:
        count = (await stub.Tokenize(pb.TokenizeRequest(chat=chat))).count
        params = pb.SamplingParams(max_tokens=1)
        request = pb.GenerateRequest(chat=chat, sampling_params=params)
        _, finished = await tokens_of(stub.Generate(request))
        assert finished.usage.prompt_tokens == count > len(TOKENIZER.encode("hi"))


async def test_bad_texts_and_ids_are_the_clients_error_by_name() -> None:
    async with cluster() as stub:
        assert await unary_error(stub.Tokenize(pb.TokenizeRequest())) == (
            "INVALID_ARGUMENT",
            "prompt is None; allowed: one of text and chat",
        )
        assert await unary_error(stub.Detokenize(pb.DetokenizeRequest(token_ids=[4096]))) == (
            "INVALID_ARGUMENT",
            "token_ids is 4096; allowed: token ids from 0 to 4095",
        )
        code, _ = await unary_error(stub.Tokenize(pb.TokenizeRequest(text="a" * 5 * 2**20)))
        assert code == "RESOURCE_EXHAUSTED"


async def test_a_deadline_ends_what_takes_too_long() -> None:
    async with cluster(request_timeout_s=0.01) as stub:
        long = pb.TokenizeRequest(text="The end. " * 300_000)
        code, details = await unary_error(stub.Tokenize(long))
        assert (code, details) == ("DEADLINE_EXCEEDED", "not finished within 0.01 s")
        code, _ = await unary_error(stub.Tokenize(long, timeout=0.005))
        assert code == "DEADLINE_EXCEEDED"


async def test_a_model_answers_to_each_of_its_names_and_reports_the_first() -> None:
    worker = ScriptedWorker("w1", answers=[[5]])
    async with cluster(worker, served_model_names=("first", "second")) as stub:
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.model, list(info.model_names)) == ("first", ["first", "second"])
        assert info.has_chat_template
        for name in ("", "first", "second"):
            request = ask(max_tokens=1)
            request.model = name
            await tokens_of(stub.Generate(request))
            assert (await stub.Tokenize(pb.TokenizeRequest(text="a", model=name))).count == 1
        refusal = ("NOT_FOUND", "model is 'third'; allowed: 'first', 'second'")
        request = ask()
        request.model = "third"
        assert await error_of(stub.Generate(request)) == refusal
        assert await unary_error(stub.Tokenize(pb.TokenizeRequest(text="a", model="third"))) == refusal
        back = pb.DetokenizeRequest(token_ids=[5], model="third")
        assert await unary_error(stub.Detokenize(back)) == refusal
