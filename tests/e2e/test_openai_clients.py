"""OpenAI's own client, LangChain's chat model and litellm, each against a served cluster as it is."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from tests.e2e.processes import FLOAT32, KV_CACHE_BYTES, ONE_MIXED, Cluster, serving
from tests.integration.router_cluster import MODEL

KEY: Final = "secret-key"
FLAGS: Final = ("--api-key", KEY, "--served-model-name", "tiny", "--max-logprobs", "5")
PARSERS: Final = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--reasoning-parser", "qwen3"),
)
QUESTION: Final = "What is a list?"
MESSAGES: Final[list[Any]] = [{"role": "user", "content": QUESTION}]


class Verdict(BaseModel):
    """A structured answer of one boolean."""

    model_config = ConfigDict(extra="forbid")
    answer: Literal["yes", "no"]
    is_sure: bool


TOOL: Final[Any] = {
    "type": "function",
    "function": {"name": "judge", "description": "Judge.", "parameters": Verdict.model_json_schema()},
}
TOKENIZER: Final = Tokenizer(read_model_folder(MODEL))
UNWANTED: Final = {
    str(token_id): -100
    for token_id in range(4096)
    if (text := TOKENIZER.token_text(token_id)).isspace() or text.startswith("<")
}
"""Keeps a model of five million parameters from blank lines within JSON, and from thinking before it."""
SHORT: Final[Any] = {"max_tokens": 120, "temperature": 0.0, "logit_bias": UNWANTED}
PLAIN: Final[Any] = {"max_tokens": 12, "temperature": 0.0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    flags = ("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), *ONE_MIXED, *FLOAT32, *FLAGS, *PARSERS)
    with serving(tmp_path_factory.mktemp("clients"), *flags) as cluster:
        yield cluster
        cluster.wait_until_idle()


@pytest.fixture(scope="module")
def url(served: Cluster) -> str:
    return f"http://{served.http_address}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def answer(client: openai.OpenAI) -> str:
    """Return the model's greedy answer to `MESSAGES`."""
    completion = client.chat.completions.create(model="tiny", messages=MESSAGES, **PLAIN)
    assert completion.choices[0].message.content
    return completion.choices[0].message.content


@pytest.fixture(scope="module")
def made(url: str) -> Callable[..., Any]:
    """Make LangChain's model; not imported above, which takes seconds that other tests would wait for."""
    chat_model = importlib.import_module("langchain_openai").ChatOpenAI
    return partial(chat_model, model="tiny", base_url=url, api_key=KEY)


@pytest.fixture(scope="module")
def model(made: Callable[..., Any]) -> Any:
    """LangChain's; as short in its words as `SHORT`."""
    bias = {int(token_id): bias for token_id, bias in UNWANTED.items()}
    return made(temperature=0, max_tokens=120, logit_bias=bias, max_retries=0)


class TestOpenAI:
    def test_plain_and_streamed_answers_are_the_same(self, client: openai.OpenAI, answer: str) -> None:
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **PLAIN
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == answer
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason in ("stop", "length")
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.completion_tokens <= 12
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

    def test_the_chat_of_anythingllm_is_streamed(self, client: openai.OpenAI) -> None:
        """Its provider "Generic OpenAI" appends the context of documents to the system message."""
        context = "\n\nContext:\n[CONTEXT 0]:\nA list is a sequence.\n[END CONTEXT 0]\n\n"
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "system", "content": "Answer by the context." + context}, *MESSAGES],
            temperature=0.7,
            max_tokens=1024,
            stream=True,
        )
        with stream:
            texts = [chunk.choices[0].delta.content for chunk, _ in zip(stream, range(20), strict=False)]
        assert "".join(filter(None, texts))

    def test_its_own_stream_helper_accumulates(self, client: openai.OpenAI, answer: str) -> None:
        with client.chat.completions.stream(model="tiny", messages=MESSAGES, **PLAIN) as stream:
            stream.until_done()
            assert stream.get_final_completion().choices[0].message.content == answer

    def test_several_answers_with_log_probabilities(self, client: openai.OpenAI) -> None:
        completion = client.chat.completions.create(
            model="tiny", messages=MESSAGES, n=3, seed=7, max_tokens=6, logprobs=True, top_logprobs=2
        )
        assert [choice.index for choice in completion.choices] == [0, 1, 2]
        assert len({choice.message.content for choice in completion.choices}) > 1
        for choice in completion.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.content
            for token in choice.logprobs.content:
                best, second = token.top_logprobs
                assert 0 >= best.logprob >= second.logprob
                assert best.logprob >= token.logprob
            spoken = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content)
            assert spoken.decode(errors="replace").startswith(choice.message.content or "-")

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "judge"}}])
    def test_a_forced_tool_is_called_in_its_form(self, client: openai.OpenAI, choice: Any) -> None:
        completion = client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            tools=[TOOL],
            tool_choice=choice,
            parallel_tool_calls=False,
            **SHORT,
        )
        message = completion.choices[0].message
        assert message.tool_calls is not None
        assert message.content is None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert call.function.name == "judge"
        Verdict.model_validate_json(call.function.arguments)
        assert completion.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        history: list[Any] = [*MESSAGES, message, result]
        after = client.chat.completions.create(model="tiny", messages=history, tools=[TOOL], **PLAIN)
        assert after.choices[0].finish_reason

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "judge"}}])
    def test_a_forced_call_of_a_weak_model_ends(self, client: openai.OpenAI, choice: Any) -> None:
        blank = {token_id for token_id in UNWANTED if TOKENIZER.token_text(int(token_id)).isspace()}
        bias = {token_id: bias for token_id, bias in UNWANTED.items() if token_id not in blank}
        fields: Any = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
        (answer,) = client.chat.completions.create(
            model="tiny", messages=MESSAGES, **{**SHORT, "logit_bias": bias}, **fields
        ).choices
        assert answer.message.tool_calls is not None
        for call in answer.message.tool_calls:
            assert call.type == "function"
            Verdict.model_validate_json(call.function.arguments)
        assert answer.finish_reason == ("tool_calls" if choice == "required" else "stop")

    def test_a_streamed_call_has_the_same_arguments(self, client: openai.OpenAI) -> None:
        fields: Any = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, **SHORT}
        whole = client.chat.completions.create(model="tiny", messages=MESSAGES, **fields)
        assert whole.choices[0].message.tool_calls is not None
        with client.chat.completions.stream(model="tiny", messages=MESSAGES, **fields) as stream:
            stream.until_done()
            message = stream.get_final_completion().choices[0].message
        assert message.tool_calls is not None
        (expected,), (call,) = whole.choices[0].message.tool_calls, message.tool_calls
        assert expected.type == call.type == "function"
        assert call.function.arguments == expected.function.arguments

    def test_an_answer_is_parsed_into_a_model(self, client: openai.OpenAI) -> None:
        completion = client.chat.completions.parse(
            model="tiny", messages=MESSAGES, response_format=Verdict, **SHORT
        )
        assert isinstance(completion.choices[0].message.parsed, Verdict)

    def test_a_thought_is_apart_and_the_form_begins_behind_it(self, client: openai.OpenAI) -> None:
        opened: list[Any] = [*MESSAGES, {"role": "assistant", "content": "<think>"}]
        completion = client.chat.completions.create(
            model="tiny",
            messages=opened,
            temperature=0,
            max_tokens=40,
            extra_body={
                "continue_final_message": True,
                "thinking_token_budget": 6,
                "structured_outputs": {"choice": ["red", "green"]},
            },
        )
        message = completion.choices[0].message
        assert message.content in ("red", "green")
        assert message.model_extra is not None
        assert message.model_extra["reasoning_content"] == message.model_extra["reasoning"] != ""

    def test_fields_of_vllm_that_are_empty_are_there(self, client: openai.OpenAI) -> None:
        answer: Any = client.chat.completions.create(model="tiny", messages=MESSAGES, **PLAIN)
        (choice,) = answer.choices
        assert choice.message.reasoning == choice.message.reasoning_content
        assert choice.token_ids is answer.prompt_logprobs is answer.kv_transfer_params is None
        completion: Any = client.completions.create(model="tiny", prompt="x", max_tokens=1)
        assert completion.choices[0].prompt_logprobs is completion.choices[0].token_ids is None

    def test_fields_that_have_no_effect_are_named(self, client: openai.OpenAI) -> None:
        raw = client.chat.completions.with_raw_response.create(
            model="tiny", messages=MESSAGES, store=True, verbosity="low", extra_body={"chat_id": "c"}, **PLAIN
        )
        assert raw.headers["x-baton-ignored"] == "chat_id"

    def test_what_is_beyond_openai_goes_through_extra_body(self, client: openai.OpenAI) -> None:
        completion = client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=40,
            extra_body={
                "structured_outputs": {"choice": ["red", "green"]},
                "top_k": 5,
                "include_timings": True,
            },
        )
        assert completion.choices[0].message.content in ("red", "green")
        assert completion.model_extra is not None
        assert completion.model_extra["timings"]["total_s"] > 0

    def test_errors_are_of_their_classes_and_name_the_field(self, client: openai.OpenAI, url: str) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
        assert caught.value.param == "temperature"
        assert "temperature is -1" in caught.value.message
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a " * 5000}])
        assert caught.value.param == "messages"
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=6)
        assert caught.value.param == "top_logprobs"
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="huge", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="allowed: a model that pools"):
            client.embeddings.create(model="tiny", input="x")
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="huge", input="x")
        with (
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()

    def test_a_form_that_is_none_is_refused_before_anything_runs(self, client: openai.OpenAI) -> None:
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strange"}}}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=form)
        assert caught.value.param == "response_format.json_schema.schema"

    def test_models_are_listed_and_texts_completed(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == ["tiny"]
        completion = client.completions.create(model="tiny", prompt=QUESTION, max_tokens=3, temperature=0)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 3

    async def _many(self, url: str, count: int) -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            calls = (
                client.chat.completions.create(model="tiny", messages=MESSAGES, **PLAIN) for _ in range(count)
            )
            return [completion.choices[0].message.content for completion in await asyncio.gather(*calls)]

    def test_its_asynchronous_client_asks_many_at_once(self, url: str, answer: str) -> None:
        assert asyncio.run(self._many(url, 8)) == [answer] * 8


class TestLangChain:
    def test_plain_and_streamed_answers_are_the_same(self, made: Callable[..., Any], answer: str) -> None:
        model = made(temperature=0, max_tokens=12)
        message = model.invoke(QUESTION)
        assert message.content == answer
        assert message.usage_metadata is not None
        assert message.usage_metadata["output_tokens"] <= 12
        assert "".join(str(chunk.content) for chunk in model.stream(QUESTION)) == answer

    def test_responses_are_what_chats_are(self, made: Callable[..., Any], answer: str) -> None:
        options = {"use_responses_api": True, "use_previous_response_id": True}
        model = made(temperature=0, max_tokens=12, **options)
        message = model.invoke(QUESTION)
        assert message.text == answer
        assert "".join(chunk.text for chunk in model.stream(QUESTION)) == answer
        follow = model.invoke([("human", QUESTION), message, ("human", QUESTION)])
        usages = [each.usage_metadata for each in (message, follow)]
        assert usages[0] is not None
        assert usages[1] is not None
        assert usages[1]["input_tokens"] > usages[0]["input_tokens"] * 2

    @pytest.mark.parametrize("method", ["json_schema", "function_calling"])
    def test_structured_output_is_an_object(self, model: Any, method: Any) -> None:
        verdict = model.with_structured_output(Verdict, method=method).invoke(QUESTION)
        assert isinstance(verdict, Verdict)

    def test_a_bound_tool_is_called_and_its_result_taken(self, model: Any) -> None:
        from langchain_core.messages import AIMessage, ToolMessage

        bound = model.bind_tools([Verdict], tool_choice="any", parallel_tool_calls=False)
        message = bound.invoke(QUESTION)
        assert isinstance(message, AIMessage)
        (call,) = message.tool_calls
        assert call["name"] == "Verdict"
        Verdict.model_validate(call["args"])
        total = None
        for chunk in bound.stream(QUESTION):
            total = chunk if total is None else total + chunk
        assert isinstance(total, AIMessage)
        assert [(c["name"], c["args"]) for c in total.tool_calls] == [(call["name"], call["args"])]
        result = ToolMessage("done", tool_call_id=call["id"])
        assert model.invoke([("human", QUESTION), message, result]).response_metadata["finish_reason"]

    def test_too_long_a_prompt_is_known_as_such(self, model: Any) -> None:
        from langchain_core.exceptions import ContextOverflowError

        with pytest.raises(ContextOverflowError, match="maximum context length"):
            model.invoke("a " * 5000)

    def test_an_error_is_openais(self, made: Callable[..., Any]) -> None:
        model = made(max_retries=0, top_p=3)
        with pytest.raises(openai.BadRequestError) as caught:
            model.invoke(QUESTION)
        assert caught.value.param == "top_p"


@pytest.mark.filterwarnings("ignore")  # its own, of its types and of connections that it leaves to the end
class TestLiteLLM:
    @pytest.fixture
    def litellm(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """The package; not imported above, which takes seconds that other tests would wait for."""
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices
        return importlib.import_module("litellm")

    @pytest.fixture
    def ask(self, litellm: Any, url: str) -> Callable[..., Any]:
        fields = {"model": "openai/tiny", "api_base": url, "messages": MESSAGES, "num_retries": 0}
        return partial(litellm.completion, **fields, api_key=KEY)

    def test_plain_and_streamed_answers_are_the_same(self, ask: Callable[..., Any], answer: str) -> None:
        assert ask(**PLAIN).choices[0].message.content == answer
        chunks = list(ask(stream=True, **PLAIN))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer

    def test_a_forced_tool_is_called_in_its_form(self, ask: Callable[..., Any]) -> None:
        message = ask(tools=[TOOL], tool_choice="required", **SHORT).choices[0].message
        assert message.tool_calls[0].function.name == "judge"
        Verdict.model_validate_json(message.tool_calls[0].function.arguments)

    def test_an_answer_follows_the_model_of_its_format(self, ask: Callable[..., Any]) -> None:
        content = ask(response_format=Verdict, **SHORT).choices[0].message.content
        Verdict.model_validate(json.loads(content))

    @pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
    def test_too_long_a_prompt_is_known_as_such(
        self, ask: Callable[..., Any], litellm: Any, provider: str
    ) -> None:
        messages = [{"role": "user", "content": "a " * 5000}]
        with pytest.raises(litellm.ContextWindowExceededError):
            ask(model=f"{provider}/tiny", messages=messages)

    def test_errors_are_of_their_classes(self, ask: Callable[..., Any], litellm: Any) -> None:
        with pytest.raises(litellm.BadRequestError, match="temperature is -1"):
            ask(temperature=-1.0)
        with pytest.raises(litellm.AuthenticationError):
            ask(api_key="wrong")
