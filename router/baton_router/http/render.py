"""POST /v1/chat/completions/render and /v1/completions/render: what would be generated, without a worker.

A reply, or each of its items, is a body of `/inference/v1/generate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.http.calls import Call
from baton_router.http.chat.request import chat_names, read_plan
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.completions.completions import read_completion
from baton_router.http.completions.schemas import CompletionRequest
from baton_router.http.generate import GenerateRequest, TokenSampling
from baton_router.http.response_format import StructuredOutputs
from baton_router.http.route import CONVERTING, Routes, Tag
from baton_router.http.sampling_fields import generation_requests
from baton_router.requests.generation import GenerationRequest

ROUTES: Final = Routes(method="POST", errors=CONVERTING)


@ROUTES.route(
    "/v1/chat/completions/render",
    "renderChatCompletion",
    "The token ids of a conversation, and the settings that it would be answered with",
    tag=Tag.CHAT,
    example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
)
async def render_chat(call: Call[ChatRequest]) -> GenerateRequest:
    """Reply with the prompt of a conversation.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        RequestError: as `GenerationService.prepare`.
    """
    with chat_names(call.body):
        _, requests = await read_plan(call, call.body)
        (rendered,) = await _render(call, requests)
    return rendered


@ROUTES.route(
    "/v1/completions/render",
    "renderCompletion",
    "The token ids of each text, and the settings that it would be completed with",
    tag=Tag.COMPLETIONS,
    example={"prompt": "The os module", "max_tokens": 32},
)
async def render_completion(call: Call[CompletionRequest]) -> list[GenerateRequest]:
    """Reply with each prompt of a completion.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        RequestError: as `GenerationService.prepare`.
    """
    prompts, sampling = await read_completion(call)
    return await _render(call, generation_requests(call, call.body, prompts, sampling))


async def _render(call: Call[Any], requests: Sequence[GenerationRequest]) -> list[GenerateRequest]:
    body, sampling = call.body, requests[0].sampling
    specs = [(await call.state.service.prepare(request)).spec for request in requests]
    call.room.release()
    if any(spec.prompt_embeds for spec in specs):
        raise InvalidRequestError("prompt_embeds", "given", "nothing: a rendered prompt is token ids alone")
    fields = {name: getattr(body, name) for name in GenerateRequest.__struct_fields__ if hasattr(body, name)}
    shared = GenerateRequest(**{**fields, "token_ids": [], "sampling_params": _as_fields(sampling)})
    return [
        msgspec.structs.replace(shared, request_id=spec.request_id, token_ids=list(spec.prompt_token_ids))
        for spec in specs
    ]


def _as_fields(sampling: Mapping[str, Any]) -> TokenSampling:
    """Return sampling parameters as `/inference/v1/generate` takes them."""
    values = dict(sampling)
    structured = values.get("structured_outputs")
    if isinstance(structured, StructuredOutputsParams):
        names = (structured.kind, "disable_any_whitespace")
        values["structured_outputs"] = StructuredOutputs(
            **{name: getattr(structured, name) for name in names}
        )
    if "extra_args" in values:
        values["vllm_xargs"] = values.pop("extra_args")
    return TokenSampling(**values)
