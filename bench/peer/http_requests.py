"""Requests, good and bad, that Baton's server and vLLM's are both sent; their names say what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MODEL: Final = "model"
_USER: Final = {"role": "user", "content": "Hello"}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
_SCHEMA: Final = {
    "type": "object",
    "properties": {"d": {"enum": ["x", "y"]}},
    "required": ["d"],
    "additionalProperties": False,
}
_NAMED: Final = {"type": "function", "function": {"name": "add"}}


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; a body that is bytes is sent as it is."""

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"


def _ask(path: str, **fields: Any) -> Request:
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0, **fields}
    return Request("POST", path, {name: value for name, value in body.items() if value is not ...})


def _chat(**fields: Any) -> Request:
    return _ask("/v1/chat/completions", **{"messages": [_USER], **fields})


def _complete(**fields: Any) -> Request:
    return _ask("/v1/completions", **{"prompt": "The os module", **fields})


def _json_schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "d", "schema": _SCHEMA, **fields}}


def _said(*messages: Mapping[str, Any]) -> Request:
    return _chat(messages=list(messages))


_GETS: Final = {
    "models": "/v1/models",
    "model_one": f"/v1/models/{MODEL}",
    "model_unknown": "/v1/models/unknown",
    "health": "/health",
    "ping": "/ping",
    "version": "/version",
    "load": "/load",
    "metrics": "/metrics",
    "openapi": "/openapi.json",
    "docs": "/docs",
    "root": "/",
    "server_info": "/server_info",
    "tokenizer_info": "/tokenizer_info",
    "get_chat": "/v1/chat/completions",
    "unknown_route": "/v1/unknown",
    "double_slash": "//v1/models",
    "is_sleeping": "/is_sleeping",
}
_POSTS: Final[Mapping[str, tuple[str, Any]]] = {
    "ping_post": ("/ping", {}),
    "tokenize": ("/tokenize", {"model": MODEL, "prompt": "The os module"}),
    "tokenize_strs": ("/tokenize", {"model": MODEL, "prompt": "The os module", "return_token_strs": True}),
    "tokenize_chat": ("/tokenize", {"model": MODEL, "messages": [_USER]}),
    "tokenize_bad": ("/tokenize", {"model": MODEL}),
    "detokenize": ("/detokenize", {"model": MODEL, "tokens": [5, 6, 7]}),
    "detok_bad": ("/detokenize", {"model": MODEL, "tokens": ["a"]}),
    "embeddings": ("/v1/embeddings", {"model": MODEL, "input": "a"}),
    "pooling": ("/pooling", {"model": MODEL, "input": "a"}),
    "score": ("/score", {"model": MODEL, "text_1": "a", "text_2": "b"}),
    "rerank": ("/rerank", {"model": MODEL, "query": "a", "documents": ["b"]}),
    "v1rerank": ("/v1/rerank", {"model": MODEL, "query": "a", "documents": ["b"]}),
    "v2rerank": ("/v2/rerank", {"model": MODEL, "query": "a", "documents": ["b"]}),
    "classify": ("/classify", {"model": MODEL, "input": "a"}),
    "responses": ("/v1/responses", {"model": MODEL, "input": "Hello", "max_output_tokens": 4}),
    "messages": ("/v1/messages", {"model": MODEL, "messages": [_USER], "max_tokens": 4}),
    "count_tokens": ("/v1/messages/count_tokens", {"model": MODEL, "messages": [_USER]}),
    "transcriptions": ("/v1/audio/transcriptions", {"model": MODEL}),
    "invocations": ("/invocations", {"model": MODEL, "messages": [_USER], "max_tokens": 4, "temperature": 0}),
    "render": ("/v1/chat/completions/render", {"model": MODEL, "messages": [_USER]}),
    "chat_batch": ("/v1/chat/completions/batch", {"model": MODEL, "messages": [[_USER]], "max_tokens": 4}),
    "trailing_slash": ("/v1/chat/completions/", {"model": MODEL, "messages": [_USER], "max_tokens": 4}),
    "reset_prefix_cache": ("/reset_prefix_cache", {}),
    "sleep": ("/sleep", {}),
    "load_lora": ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/a"}),
    "json_array": ("/v1/chat/completions", [1, 2]),
    "bad_json": ("/v1/chat/completions", b'{"model": '),
    "empty_body": ("/v1/chat/completions", b""),
}
_OTHERS: Final[Mapping[str, Request]] = {
    "wrong_ct": Request("POST", "/v1/chat/completions", {"model": MODEL, "messages": [_USER]}, "text/plain"),
    "no_ct": Request("POST", "/v1/chat/completions", {"model": MODEL, "messages": [_USER]}, ""),
    "options_chat": Request("OPTIONS", "/v1/chat/completions"),
    "head_health": Request("HEAD", "/health"),
    "generate": Request(
        "POST", "/inference/v1/generate", {"model": MODEL, "token_ids": [5, 6], "sampling_params": {}}
    ),
}
_CHATS: Final[Mapping[str, Request]] = {
    f"chat_{name}": request
    for name, request in {
        "plain": _chat(),
        "default_max": _chat(max_tokens=..., stop=["e"]),
        "mct": _chat(max_tokens=..., max_completion_tokens=3),
        "stream": _chat(stream=True),
        "stream_usage": _chat(stream=True, stream_options={"include_usage": True}),
        "stream_cont": _chat(
            stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
        ),
        "logprobs": _chat(logprobs=True, top_logprobs=2),
        "stream_logprobs": _chat(stream=True, logprobs=True, top_logprobs=2),
        "n2": _chat(n=2, temperature=1, top_k=1),
        "n2_greedy": _chat(n=2),
        "stop": _chat(stop=["e"], max_tokens=16),
        "no_model": _chat(model=...),
        "bad_model": _chat(model="unknown"),
        "no_messages": _chat(messages=...),
        "empty_messages": _chat(messages=[]),
        "bad_role": _said({"role": "alien", "content": "a"}),
        "msg_no_content": _said({"role": "user"}),
        "content_parts": _said({"role": "user", "content": [{"type": "text", "text": "Hello"}]}),
        "image": _said({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}),
        "msg_extra": _said({**_USER, "foo": 1}),
        "temp_neg": _chat(temperature=-1),
        "temp3": _chat(temperature=3, top_k=1),
        "temp_str": _chat(temperature="0"),
        "top_p0": _chat(top_p=0),
        "max0": _chat(max_tokens=0),
        "max_huge": _chat(max_tokens=10**7, stop=["e"]),
        "max_neg": _chat(max_tokens=-1),
        "unknown_field": _chat(foo=1),
        "top_logprobs_only": _chat(top_logprobs=2),
        "top_logprobs_21": _chat(logprobs=True, top_logprobs=21),
        "json_object": _chat(response_format={"type": "json_object"}),
        "json_schema": _chat(response_format=_json_schema(), max_tokens=24),
        "rf_bad": _chat(response_format={"type": "unknown"}),
        "rf_text": _chat(response_format={"type": "text"}),
        "structured_choice": _chat(structured_outputs={"choice": ["yes", "no"]}),
        "structured_regex": _chat(structured_outputs={"regex": "[ab]{3}"}),
        "guided_choice": _chat(guided_choice=["yes", "no"]),
        "guided_json": _chat(guided_json=_SCHEMA, max_tokens=24),
        "tools_auto": _chat(tools=[_TOOL], tool_choice="auto"),
        "tools_none": _chat(tools=[_TOOL], tool_choice="none"),
        "tools_required": _chat(tools=[_TOOL], tool_choice="required", max_tokens=64),
        "tools_named": _chat(tools=[_TOOL], tool_choice=_NAMED, max_tokens=64),
        "tools_named_stream": _chat(tools=[_TOOL], tool_choice=_NAMED, max_tokens=64, stream=True),
        "tools_required_stream": _chat(tools=[_TOOL], tool_choice="required", max_tokens=64, stream=True),
        "tools_named_unknown": _chat(
            tools=[_TOOL], tool_choice={"type": "function", "function": {"name": "no"}}
        ),
        "tool_choice_no_tools": _chat(tool_choice="auto"),
        "tools_empty": _chat(tools=[]),
        "parallel": _chat(tools=[_TOOL], parallel_tool_calls=False),
        "tool_message": _said(
            _USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ),
        "continue": _chat(
            messages=[_USER, {"role": "assistant", "content": "Well"}],
            add_generation_prompt=False,
            continue_final_message=True,
        ),
        "continue_both": _chat(add_generation_prompt=True, continue_final_message=True),
        "echo": _chat(echo=True),
        "template_req": _chat(chat_template="{{ messages[0].content }}"),
        "template_kwargs": _chat(chat_template_kwargs={"a": 1}),
        "prompt_logprobs": _chat(prompt_logprobs=1),
        "return_token_ids": _chat(return_token_ids=True),
        "return_token_ids_stream": _chat(return_token_ids=True, stream=True),
        "tokens_as_ids": _chat(return_tokens_as_token_ids=True, logprobs=True, top_logprobs=1),
        "user": _chat(user="me"),
        "store": _chat(store=True),
        "verbosity": _chat(verbosity="low"),
        "reasoning_effort": _chat(reasoning_effort="low"),
        "modalities": _chat(modalities=["text"]),
        "functions": _chat(functions=[{"name": "f", "parameters": {}}]),
        "priority": _chat(priority=1),
        "seed": _chat(seed=1),
        "logit_bias": _chat(logit_bias={"42": 5}),
        "logit_bias_101": _chat(logit_bias={"42": 101}),
        "best_of": _chat(best_of=2),
        "beam": _chat(use_beam_search=True),
        "lora": _chat(model="an-adapter"),
        "kv": _chat(kv_transfer_params={"do_remote_decode": True}),
        "request_id": _chat(request_id="mine"),
        "null_fields": _chat(stop=None, logprobs=None, tools=None, seed=None, user=None, logit_bias=None),
        "stream_opts_nostream": _chat(stream_options={"include_usage": True}),
        "min_gt_max": _chat(min_tokens=20),
        "developer": _said({"role": "developer", "content": "Be brief"}, _USER),
        "mm_processor_kwargs": _chat(mm_processor_kwargs={"a": 1}),
        "truncate": _chat(truncate_prompt_tokens=5),
        "cache_salt": _chat(cache_salt="salt"),
        "n0": _chat(n=0),
        "n200": _chat(n=200, temperature=1, max_tokens=1),
        "rep3": _chat(repetition_penalty=3),
        "too_long": _chat(messages=[{"role": "user", "content": "Hello " * 2000}]),
        "thinking": _chat(thinking_token_budget=5),
    }.items()
}
_COMPLETIONS: Final[Mapping[str, Request]] = {
    f"comp_{name}": request
    for name, request in {
        "plain": _complete(),
        "default_max": _complete(max_tokens=...),
        "stream": _complete(stream=True),
        "stream_usage": _complete(stream=True, stream_options={"include_usage": True}),
        "list": _complete(prompt=["The os", "A list"]),
        "list_stream": _complete(prompt=["The os", "A list"], stream=True),
        "ids": _complete(prompt=[5, 6, 7]),
        "idlists": _complete(prompt=[[5, 6], [7, 8]]),
        "empty": _complete(prompt=""),
        "empty_list": _complete(prompt=[]),
        "no_prompt": _complete(prompt=...),
        "null_prompt": _complete(prompt=None),
        "logprobs": _complete(logprobs=2),
        "logprobs0": _complete(logprobs=0),
        "logprobs_stream": _complete(logprobs=2, stream=True),
        "echo": _complete(echo=True),
        "echo_lp": _complete(echo=True, logprobs=1),
        "echo_max0": _complete(echo=True, max_tokens=0),
        "max0": _complete(max_tokens=0),
        "echo_stream": _complete(echo=True, stream=True),
        "suffix": _complete(suffix="end"),
        "best_of": _complete(best_of=2),
        "n2": _complete(n=2, temperature=1, top_k=1),
        "prompt_logprobs": _complete(prompt_logprobs=1),
        "stop": _complete(stop="e", max_tokens=16),
        "oob": _complete(prompt=[10**6]),
        "lp_neg": _complete(logprobs=-1),
        "lp30": _complete(logprobs=30),
        "beam": _complete(use_beam_search=True),
        "rf": _complete(response_format={"type": "json_object"}),
        "embeds": _complete(prompt=..., prompt_embeds="AAAA"),
        "ignore_eos": _complete(ignore_eos=True),
        "max_null": _complete(max_tokens=None, stop=["e"]),
    }.items()
}
_MORE: Final[Mapping[str, Request]] = {
    "stream_bad_param": _chat(stream=True, temperature=-1),
    "stream_too_long": _chat(stream=True, messages=[{"role": "user", "content": "Hello " * 2000}]),
    "max_plus_prompt_gt": _chat(max_tokens=250, stop=["e"]),
    "max_plus_prompt_gt_200": _chat(max_tokens=200, stop=["e"]),
    "stop_token_ids": _chat(stop_token_ids=[42], logit_bias={"42": 100}),
    "stop_str_reason": _chat(stop=["a"], max_tokens=16),
    "stop5": _chat(stop=["a", "b", "c", "d", "e"], max_tokens=16),
    "stop_empty": _chat(stop=[]),
    "stop_empty_str": _chat(stop=""),
    "stop_empty_str_list": _chat(stop=[""]),
    "include_stop": _chat(stop=["e"], include_stop_str_in_output=True, max_tokens=16),
    "empty_user": _said({"role": "user", "content": ""}),
    "content_list_empty": _said({"role": "user", "content": []}),
    "content_null_assistant": _said(_USER, {"role": "assistant", "content": None}, _USER),
    "content_str_parts": _said({"role": "user", "content": ["Hello", "again"]}),
    "assistant_last": _said(_USER, {"role": "assistant", "content": "Well"}),
    "tool_extra_fields": _chat(tools=[{**_TOOL, "function": {**_TOOL["function"], "foo": 1}}]),  # type: ignore[dict-item]
    "tool_no_params": _chat(tools=[{"type": "function", "function": {"name": "add"}}]),
    "tool_null_parameters": _chat(
        tools=[{"type": "function", "function": {"name": "add", "parameters": None}}]
    ),
    "assistant_reasoning": _said(_USER, {"role": "assistant", "content": "Well", "reasoning": "so"}, _USER),
    "assistant_roundtrip": _said(
        _USER, {"role": "assistant", "content": "Well", "refusal": None, "tool_calls": []}, _USER
    ),
    "logprobs_int_chat": _chat(logprobs=2),
    "logprobs_true_top_null": _chat(logprobs=True, top_logprobs=None),
    "n_null": _chat(n=None),
    "seed_neg": _chat(seed=-1),
    "seed_big": _chat(seed=2**62),
    "top_k": _chat(top_k=5),
    "float_maxtokens": _chat(max_tokens=4.0),
    "str_maxtokens": _chat(max_tokens="4"),
    "stream_str": _chat(stream="true"),
    "prediction": _chat(prediction={"type": "content", "content": "a"}),
    "service_tier_flex": _chat(service_tier="flex"),
    "parallel_true": _chat(tools=[_TOOL], parallel_tool_calls=True),
    "web_search": _chat(web_search_options={}),
    "prompt_cache_retention": _chat(prompt_cache_retention="24h"),
    "enable_thinking": _chat(enable_thinking=False),
    "chat_id": _chat(chat_id="a"),
    "num_ctx": _chat(num_ctx=4096),
    "structural_tag": _chat(response_format={"type": "structural_tag", "structures": [], "triggers": []}),
    "json_schema_strict": _chat(response_format=_json_schema(strict=True), max_tokens=24),
    "json_schema_noname": _chat(response_format={"type": "json_schema", "json_schema": {"schema": _SCHEMA}}),
    "json_schema_unsup": _chat(response_format=_json_schema(schema={"type": "object", "minProperties": 1})),
    "json_schema_bad": _chat(response_format=_json_schema(schema={"type": "unknown"})),
    "min_tokens": _chat(min_tokens=3),
    "allowed_ids_oob": _chat(allowed_token_ids=[10**6]),
    "bad_words": _chat(bad_words=["the"]),
    "logit_bias_oob": _chat(logit_bias={"1000000": 1}),
    "logit_bias_badkey": _chat(logit_bias={"a": 1}),
}
REQUESTS: Final[Mapping[str, Request]] = {
    **{name: Request("GET", path) for name, path in _GETS.items()},
    **{name: Request("POST", path, body) for name, (path, body) in _POSTS.items()},
    **_OTHERS,
    **_CHATS,
    **_COMPLETIONS,
    **_MORE,
}
