"""Reads chat requests: the conversation, the sampling parameters, and the tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.http.calls import Call
from baton_router.http.chat.schemas import MAX_MESSAGES, ChatMessage, ChatRequest, ChatTool, NamedTool
from baton_router.http.chat.tool_choice import Choice, ToolUse, forced_names, read_tool_use
from baton_router.http.errors import renamed
from baton_router.http.sampling_fields import (
    check_request,
    constraint_names,
    fill_in,
    generation_requests,
    read_sampling,
)
from baton_router.process.http_settings import HttpSettings
from baton_router.requests.generation import GenerationRequest
from baton_router.text.chat_template import Conversation

_REFUSED: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "functions": (([],), "nothing: tools has what the model may call"),
    "function_call": (("none", "auto"), "nothing: tool_choice says what is called"),
    "audio": ((), "nothing: answers are text"),
    "modalities": (([], ["text"]), "['text']: answers are text"),
    "web_search_options": ((), "nothing: the model searches nowhere"),
}
"""Fields that others know: values that ask for nothing, and what is allowed."""
_SHORT: Final = SamplingParams().max_tokens
"""A chat's reply may be as long as the context holds, where the model's own defaults set no limit."""


class ConversationFields(Protocol):
    """The fields of a request that make a conversation of messages."""

    @property
    def tools(self) -> Sequence[ChatTool] | None: ...
    @property
    def documents(self) -> Sequence[Mapping[str, Any]] | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...
    @property
    def enable_thinking(self) -> bool | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...


class MessageFields(ConversationFields, Protocol):
    """The fields of a request for one conversation."""

    @property
    def messages(self) -> Sequence[ChatMessage] | None: ...


def read_conversation(fields: MessageFields) -> Conversation:
    """Return the conversation of a request.

    Raises:
        InvalidRequestError: as `read_messages`.
    """
    return read_messages(fields, fields.messages or (), "messages")


def read_messages(fields: ConversationFields, messages: Sequence[ChatMessage], name: str) -> Conversation:
    """Return the conversation as the template gets it; contents are checked there.

    `name` is where the messages are in the request.

    Raises:
        InvalidRequestError: a message is not one of its role; the error names it.
    """
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(name, f"{len(messages)} messages", f"at most {MAX_MESSAGES}")
    continues = bool(fields.continue_final_message)
    prompted = fields.add_generation_prompt
    return Conversation(
        messages=tuple(_read_message(f"{name}[{index}]", message) for index, message in enumerate(messages)),
        tools=tuple(
            {"type": "function", "function": msgspec.to_builtins(tool.function)}
            for tool in fields.tools or ()
        ),
        documents=tuple(fields.documents or ()),
        add_generation_prompt=not continues if prompted is None else prompted,
        continue_final_message=continues,
        template=fields.chat_template,
        template_arguments=_template_arguments(fields),
    )


def _template_arguments(fields: ConversationFields) -> Mapping[str, Any]:
    """Return the further variables of the template; those of the client's own come first."""
    effort, is_thinking = fields.reasoning_effort, fields.enable_thinking
    if is_thinking is None and effort is not None:
        is_thinking = effort != "none"
    return {
        **({} if is_thinking is None else {"enable_thinking": is_thinking}),
        **(fields.chat_template_kwargs or {}),
        **({} if effort is None else {"reasoning_effort": effort}),
    }


def _read_message(name: str, message: ChatMessage) -> dict[str, Any]:
    role = message.role
    for field, owner in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if getattr(message, field) and role != owner:
            raise InvalidRequestError(f"{name}.{field}", "given", f"in messages of role {owner} alone")
    read: dict[str, Any] = msgspec.to_builtins(message)
    for field in ("annotations", "refusal"):
        read.pop(field, None)
    read["content"] = "" if message.content is None else message.content
    if message.tool_calls:
        read["tool_calls"] = [
            {"type": "function", **{key: call[key] for key in call if key not in ("index", "type")}}
            for call in read["tool_calls"]
        ]
    else:
        read.pop("tool_calls", None)
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """A parsed chat request."""

    conversation: Conversation
    sampling: Mapping[str, Any]
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
    fill_in(body, settings.answers)
    exclude_unused_tools(body, settings)
    tool_use = read_tool_use(
        body.tools or (),
        body.tool_choice,
        is_parallel=body.parallel_tool_calls is not False,
        parser_name=settings.tool_call_parser,
        is_auto_enabled=settings.enable_auto_tool_choice,
    )
    _exclude_disallowed_tools(body)
    conversation = read_conversation(body)
    sampling = _read_sampling(body, tool_use)
    if settings.reasoning_parser or tool_use.choice is Choice.AUTO:
        sampling.setdefault("skip_special_tokens", False)
    if sampling["max_tokens"] is None and defaults.max_tokens != _SHORT:
        sampling["max_tokens"] = defaults.max_tokens
    return ChatPlan(conversation=conversation, sampling=sampling, tool_use=tool_use)


async def read_plan(call: Call[Any], body: ChatRequest) -> tuple[ChatPlan, list[GenerationRequest]]:
    """Read the chat that a call asks for; returns it with its one request.

    It releases the fields of the body that the conversation is read from: they can be large.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
    """
    state = call.state
    plan = await call.read(read_chat, body, state.settings, state.service.model.sampling_defaults)
    body.messages = []
    body.tools = body.documents = body.chat_template_kwargs = None
    return plan, generation_requests(call, body, [plan.conversation], plan.sampling)


def exclude_unused_tools(body: ChatRequest, settings: HttpSettings) -> None:
    """Leave out tools that `tool_choice` rules out, where the operator wants that. Mutates `body`."""
    if settings.answers.excludes_unused_tools and body.tool_choice == "none":
        body.tools = None


def _exclude_disallowed_tools(body: ChatRequest) -> None:
    """Leave out tools that an `allowed_tools` choice does not name. Mutates `body`."""
    if isinstance(body.tool_choice, NamedTool) and body.tool_choice.allowed_tools is not None:
        names = {tool.function.name for tool in body.tool_choice.allowed_tools.tools}
        body.tools = [tool for tool in body.tools or () if tool.function.name in names]


async def count_tokens(call: Call[Any], body: ChatRequest) -> int:
    """Return the number of tokens of a chat's prompt.

    Raises:
        InvalidRequestError: a field is wrong; the message names it.
        RequestError: as `GenerationService.tokenize`.
    """
    exclude_unused_tools(body, call.state.settings)
    _exclude_disallowed_tools(body)
    conversation = await call.read(read_conversation, body)
    token_ids = await call.state.service.tokenize(
        conversation, tenant=call.tenant, model=body.model or "", add_special_tokens=None
    )
    return len(token_ids)


def chat_names(body: ChatRequest) -> AbstractContextManager[None]:
    """Name fields in errors as chat requests do, where the sampling parameters have other names.

    Raises:
        InvalidRequestError: one that the block raises.
    """
    names = {"prompt": "messages", "chat": "messages", "logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if body.tool_choice not in (None, "none", "auto"):
        names |= forced_names(body.tools or (), body.tool_choice)
    return renamed(constraint_names(body) | names)


def _read_sampling(body: ChatRequest, tool_use: ToolUse) -> dict[str, Any]:
    sampling = read_sampling(body)
    limit = body.max_completion_tokens
    sampling["max_tokens"] = body.max_tokens if limit is None else limit
    sampling |= _read_logprobs(body)
    if (schema := tool_use.schema) is not None:
        if body.structured_outputs is not None:
            raise InvalidRequestError(
                "structured_outputs", "given", "nothing: tool_choice sets the structured output"
            )
        sampling["structured_outputs"] = StructuredOutputsParams(
            json=schema,  # type: ignore[arg-type]  # made text
            disable_any_whitespace=True,  # a weak model would fill the call with it
        )
    return sampling


def _read_logprobs(body: ChatRequest) -> dict[str, Any]:
    if not body.logprobs:
        for name in ("top_logprobs", "logprob_token_ids"):
            if getattr(body, name):
                raise InvalidRequestError(name, getattr(body, name), "nothing, unless logprobs is true")
        return {}
    top = body.top_logprobs or 0
    wants_prompt = body.echo and body.prompt_logprobs is None
    return {"logprobs": top, **({"prompt_logprobs": top} if wants_prompt else {})}
