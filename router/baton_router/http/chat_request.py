"""From a chat request to what the router is to generate, and how the answers are to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.chat_template import Conversation
from baton_router.http.chat_conversation import read_conversation
from baton_router.http.chat_schemas import ChatRequest
from baton_router.http.http_settings import HttpSettings
from baton_router.http.sampling_fields import check_request, read_given
from baton_router.http.tool_choice import Choice, ToolUse, read_tool_use

_REFUSED: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "functions": ((), "nothing: tools has what the model may call"),
    "function_call": ((), "nothing: tool_choice says what is called"),
    "audio": ((), "nothing: answers are text"),
    "modalities": ((["text"],), "['text']: answers are text"),
    "prediction": ((), "nothing: answers are not predicted"),
    "web_search_options": ((), "nothing: the model searches nowhere"),
    "service_tier": (("auto", "default"), "auto or default: there is one tier"),
}
"""Fields that others know: values that ask for nothing, and what is allowed."""
_SHORT: Final = SamplingParams().max_tokens
"""A chat's answer may be as long as the context holds, where the model's own defaults set no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """A request, read."""

    conversation: Conversation
    given: Mapping[str, Any]
    """Sampling parameters."""
    tool_use: ToolUse


def read_chat(body: ChatRequest, settings: HttpSettings, defaults: SamplingParams) -> ChatPlan:
    """Read a request; `defaults` are the model's.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
    """
    check_request(body)
    for name, (neutral, allowed) in _REFUSED.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise InvalidRequestError(name, value, allowed)
    conversation = read_conversation(body)
    tool_use = read_tool_use(
        body, parser_name=settings.tool_call_parser, is_auto_enabled=settings.enable_auto_tool_choice
    )
    given = _read_given(body, tool_use)
    if settings.reasoning_parser or tool_use.choice is Choice.AUTO:
        given.setdefault("skip_special_tokens", False)
    if given["max_tokens"] is None and defaults.max_tokens != _SHORT:
        given["max_tokens"] = defaults.max_tokens
    return ChatPlan(conversation=conversation, given=given, tool_use=tool_use)


@contextmanager
def chat_names(body: ChatRequest) -> Iterator[None]:
    """Name fields in errors as chat requests do, where the sampling parameters have other names.

    Raises:
        InvalidRequestError: one that the block raises.
    """
    names = {"prompt": "messages", "chat": "messages", "logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if body.tool_choice not in (None, "none", "auto"):
        names["structured_outputs.json"] = "tools"
    elif body.response_format is not None and body.structured_outputs is None:
        names["structured_outputs.json"] = "response_format.json_schema.schema"
        names["structured_outputs.structural_tag"] = "response_format"
    try:
        yield
    except InvalidRequestError as error:
        if (name := names.get(error.field)) is not None:
            error.args = (str(error).replace(error.field, name, 1),)
            error.field = name
        raise


def _read_given(body: ChatRequest, tool_use: ToolUse) -> dict[str, Any]:
    given = read_given(body)
    limit = body.max_completion_tokens
    given["max_tokens"] = body.max_tokens if limit is None else limit
    given |= _read_logprobs(body)
    if (schema := tool_use.schema) is not None:
        if body.structured_outputs is not None:
            raise InvalidRequestError(
                "structured_outputs", "given", "nothing: tool_choice decides what form the answer has"
            )
        given["structured_outputs"] = StructuredOutputsParams(json=schema)  # type: ignore[arg-type]  # made text
    return given


def _read_logprobs(body: ChatRequest) -> dict[str, Any]:
    if not body.logprobs:
        for name in ("top_logprobs", "logprob_token_ids"):
            if getattr(body, name):
                raise InvalidRequestError(name, getattr(body, name), "nothing, unless logprobs is true")
        return {}
    top = body.top_logprobs or 0
    wants_prompt = body.echo and body.prompt_logprobs is None
    return {"logprobs": top, **({"prompt_logprobs": top} if wants_prompt else {})}
