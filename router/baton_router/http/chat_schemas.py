"""The bodies of `/v1/chat/completions`: what comes in.

Names and meanings are OpenAI's and vLLM's. Parts of messages are checked where templates are fed with them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from baton_router.http.sampling_fields import Fields, RequestFields

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 1024
ROLES: Final = ("developer", "system", "user", "assistant", "tool")
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class CalledFunction(Fields, kw_only=True):
    """What an earlier answer called, and with what."""

    name: str
    arguments: str | dict[str, Any] | None = None
    """A JSON object, as text or not."""


class ToolCallOfMessage(Fields, omit_defaults=True):
    """A call in an earlier answer."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    """Not looked at: streamed calls carry it."""


class ChatMessage(Fields, omit_defaults=True):
    """A message of the conversation."""

    role: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(ROLES)})]
    content: str | list[str | dict[str, Any]] | None = None
    """Text, or parts of type `text`."""
    name: str | None = None
    tool_calls: list[ToolCallOfMessage] | None = None
    """Of the assistant."""
    tool_call_id: str | None = None
    """Of a tool: the call that it answers."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same as `reasoning_content`, under its newer name."""
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None


class FunctionDefinition(Fields, omit_defaults=True):
    """A function that the model may call."""

    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Calls that the request demands follow the schema whatever this says."""


class ChatTool(Fields, omit_defaults=True):
    """A tool that the request offers."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(Fields, kw_only=True):
    name: _Name


class NamedTool(Fields, kw_only=True):
    """The one tool to call."""

    function: NamedFunction
    type: Literal["function"] = "function"


Messages = Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
Tools = Annotated[list[ChatTool], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(RequestFields):
    """What a client asks for."""

    messages: Messages
    tools: Tools | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    """True, but where `continue_final_message` is."""
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    """For the template, which also gets `enable_thinking`: whether this is not `none`."""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """The newer name; by default as many as the context holds."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    echo: bool | None = None
    """Begin the answer with the last message, where that is of the same role."""
    include_timings: bool | None = None
    """Tell where the time went, as `timings`."""
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None
    service_tier: Any = None
