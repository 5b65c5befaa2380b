"""The heaviest requests within the limits, one of every kind, over HTTP and gRPC."""

from __future__ import annotations

from typing import Any, Final

from baton_proto.v1 import baton_pb2 as pb

IDS: Final = [300 + 7 * place % 3600 for place in range(2000)]
CHAT: Final = [{"role": "user", "content": "Hello"}]
PARTS: Final = [{"type": "text", "text": "a"}] * 40_000
CALLS: Final = [{"function": {"name": "f"}}] * 1024
USAGE: Final = {"include_usage": True, "continuous_usage_stats": True}


def tool(number: int) -> dict[str, Any]:
    properties = {f"p{place}": {"type": "string"} for place in range(40)}
    function = {"name": f"f{number}", "parameters": {"type": "object", "properties": properties}}
    return {"type": "function", "function": {**function, "description": "x" * 500}}


TOOLS: Final = [tool(number) for number in range(1024)]
HEAVIEST: Final[dict[str, tuple[str, int, dict[str, Any]]]] = {
    "prompt_logprobs of 60 prompts": (
        "/v1/completions",
        200,
        {"prompt": [IDS] * 60, "max_tokens": 1, "prompt_logprobs": 20},
    ),
    "prompt_logprobs in a stream": (
        "/v1/completions",
        200,
        {"prompt": [IDS * 10] * 2, "max_tokens": 1, "prompt_logprobs": 20, "stream": True},
    ),
    "prompt_logprobs of a chat": (
        "/v1/chat/completions",
        200,
        {"messages": [{"role": "user", "content": "word " * 20000}], "max_tokens": 1, "prompt_logprobs": 20},
    ),
    "logprobs of 64 sequences": (
        "/v1/completions",
        200,
        {"prompt": "Hi", "max_tokens": 100, "n": 64, "logprobs": 20, "return_token_ids": True},
    ),
    "logprobs of 64 answers to a chat": (
        "/v1/chat/completions",
        200,
        {"messages": CHAT, "max_tokens": 100, "n": 64, "logprobs": True, "top_logprobs": 20},
    ),
    "logprobs of 64 answers to a chat in a stream": (
        "/v1/chat/completions",
        200,
        {
            "messages": CHAT,
            "max_tokens": 60,
            "n": 64,
            "logprobs": True,
            "top_logprobs": 20,
            "stream": True,
            "stream_options": USAGE,
        },
    ),
    "one long sequence with logprobs": (
        "/v1/completions",
        200,
        {"prompt": "Hi", "max_tokens": 8000, "logprobs": 20},
    ),
    "echo with logprobs": (
        "/v1/completions",
        200,
        {"prompt": [IDS * 10] * 2, "max_tokens": 1, "logprobs": 20, "echo": True},
    ),
    "echo with logprobs in a stream": (
        "/v1/completions",
        200,
        {"prompt": IDS * 15, "max_tokens": 3, "logprobs": 20, "echo": True, "stream": True},
    ),
    "tokens in, tokens out": (
        "/inference/v1/generate",
        200,
        {
            "token_ids": IDS * 20,
            "sampling_params": {"max_tokens": 100, "n": 16, "logprobs": 20, "prompt_logprobs": 5},
        },
    ),
    "a stream of 64 sequences": (
        "/v1/completions",
        200,
        {"prompt": "Hi", "max_tokens": 150, "n": 64, "stream": True, "stream_options": USAGE},
    ),
    "1024 prompts and 4096 sequences": (
        "/v1/completions",
        200,
        {"prompt": ["word " * 50] * 1024, "max_tokens": 2, "n": 4},
    ),
    "1024 prompts of token ids, which are returned": (
        "/v1/completions",
        200,
        {"prompt": [IDS[:600]] * 1024, "max_tokens": 1, "return_token_ids": True},
    ),
    "a prompt of a million ids, cut": (
        "/v1/completions",
        200,
        {"prompt": [1] * 1_390_000, "max_tokens": 1, "truncate_prompt_tokens": 100},
    ),
    "4096 messages": (
        "/v1/chat/completions",
        200,
        {"messages": [{"role": "user", "content": "word " * 10}] * 4096, "max_tokens": 2},
    ),
    "messages of many parts": (
        "/v1/chat/completions",
        200,
        {"messages": [{"role": "user", "content": PARTS}], "max_tokens": 2},
    ),
    "1024 calls in each of many messages": (
        "/v1/chat/completions",
        200,
        {
            "max_tokens": 2,
            "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 1024}] * 85,
        },
    ),
    "1024 tools and 4096 items of a response": (
        "/v1/responses",
        200,
        {
            "max_output_tokens": 2,
            "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 4096,
            "tools": [{"type": "function", **each["function"]} for each in TOOLS],
            "tool_choice": "none",
        },
    ),
    "1024 tools": (
        "/v1/chat/completions",
        200,
        {"max_tokens": 2, "messages": CHAT, "tools": TOOLS, "tool_choice": "none"},
    ),
    "many variables of the template": (
        "/v1/chat/completions",
        200,
        {"messages": CHAT, "chat_template_kwargs": {"a": [[]] * 500_000}, "max_tokens": 2},
    ),
    "many names": (
        "/v1/chat/completions",
        200,
        {"messages": CHAT, "chat_template_kwargs": {str(n): 1 for n in range(250_000)}, "max_tokens": 2},
    ),
    "a large value that is refused": (
        "/v1/chat/completions",
        400,
        {"messages": CHAT, "functions": [[[]] * 500_000]},
    ),
    "more small values than may be": (
        "/v1/chat/completions",
        400,
        {"messages": CHAT, "chat_template_kwargs": {"a": [[]] * 1_300_000}},
    ),
    "a large response format": (
        "/v1/chat/completions",
        400,
        {
            "messages": CHAT,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"enum": ["x" * 30] * 100_000}},
            },
        },
    ),
    "a logit bias for many": (
        "/v1/completions",
        400,
        {"prompt": "a", "logit_bias": {str(number): 1 for number in range(250_000)}},
    ),
    "tokenize": ("/tokenize", 200, {"prompt": "word " * 400_000, "return_token_strs": True}),
    "detokenize": ("/detokenize", 200, {"tokens": [300, 301, 302, 303] * 2**17}),
}


HEAVIEST_CALLS: Final = {
    "prompt_logprobs": pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=IDS * 20),
        sampling_params=pb.SamplingParams(max_tokens=1, prompt_logprobs=20),
    ),
    "logprobs of 64 sequences": pb.GenerateRequest(
        text="Hi", sampling_params=pb.SamplingParams(max_tokens=60, n=64, logprobs=20)
    ),
    "four million ids, cut": pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[1] * 4_000_000),
        truncate_prompt_tokens=100,
        sampling_params=pb.SamplingParams(max_tokens=1),
    ),
    "4096 messages": pb.GenerateRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="word " * 10)] * 4096),
        sampling_params=pb.SamplingParams(max_tokens=1),
    ),
}
