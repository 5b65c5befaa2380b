"""The settings of a request, as its response has them."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from baton_core.requests.sampling_params import SamplingParams
from baton_router.http.responses.replies import ReplyTool, Response
from baton_router.http.responses.schemas import ResponsesRequest, ToolChoice


def new_response(
    body: ResponsesRequest, *, name: str, model: str, params: SamplingParams, is_stored: bool
) -> Response:
    """Return the response to a request that begins; `params` are what it is sampled with."""
    choice = body.tool_choice
    text = {} if body.text is None else _given(body.text)
    return Response(
        id=name,
        created_at=int(time.time()),
        status="in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": None, "summary": None, **(_given(body.reasoning) if body.reasoning else {})},
        safety_identifier=body.safety_identifier,
        store=is_stored,
        temperature=params.temperature,
        text={"format": {"type": "text"}, **text},
        tool_choice={"type": choice.type, "name": choice.name}
        if isinstance(choice, ToolChoice)
        else choice or "auto",
        tools=[
            ReplyTool(
                name=tool.name,
                description=tool.description,
                parameters=msgspec.Raw(msgspec.json.encode(tool.parameters)),
                strict=tool.strict,
            )
            for tool in body.tools or ()
        ],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _given(fields: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(fields).items() if value is not None}
