"""The bodies of `/v1/chat/completions`: what comes in.

Names and meanings are OpenAI's and vLLM's. Parts of messages are checked where templates are fed with them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from baton_router.http.sampling_fields import Fields, RequestFields

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 1024
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class CalledFunction(Fields, kw_only=True):
    """A function call of an earlier message."""

    name: str
    """The function's name."""
    arguments: str | dict[str, Any] | None = None
    """A JSON object, as text or not."""


class ToolCallOfMessage(Fields, omit_defaults=True):
    """A call in an earlier reply."""

    function: CalledFunction
    """The function and its arguments."""
    id: str | None = None
    """The name of the call."""
    type: Literal["function"] | None = "function"
    """The kind of tool."""
    index: int | None = None
    """Ignored: streamed calls carry it."""


class ChatMessage(Fields, omit_defaults=True):
    """A message of the conversation."""

    role: _Name
    """The speaker: developer, system, user, assistant, tool, or another that the chat template knows."""
    content: str | list[str | dict[str, Any]] | None = None
    """Text, or parts of type `text`."""
    name: str | None = None
    """The speaker's name, for templates that use it."""
    tool_calls: Annotated[list[ToolCallOfMessage], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    """Tool calls of an assistant message."""
    tool_call_id: str | None = None
    """The tool call whose result a tool message brings."""
    reasoning_content: str | None = None
    """The reasoning of an earlier reply."""
    reasoning: str | None = None
    """The same as `reasoning_content`, under its newer name."""
    refusal: str | None = None
    """Ignored: earlier replies carry it."""
    audio: None = None
    """Must be null."""
    function_call: None = None
    """Must be null: `tool_calls` takes its place."""
    annotations: list[Any] | None = None
    """Ignored: earlier replies carry it."""


class FunctionDefinition(Fields, omit_defaults=True):
    """A function that the model may call."""

    name: _Name
    """The function's name."""
    description: str | None = None
    """Explains to the model what the function does."""
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Calls that the request demands follow the schema whatever this says."""


class ChatTool(Fields, omit_defaults=True):
    """A tool that the request offers."""

    function: FunctionDefinition
    """The function that may be called."""
    type: Literal["function"] = "function"
    """The kind of tool."""


class NamedFunction(Fields, kw_only=True):
    name: _Name
    """The function's name."""


class AllowedTool(Fields, kw_only=True):
    """A tool among those that may be called."""

    function: NamedFunction
    """The function that may be called."""
    type: Literal["function"] = "function"
    """The kind of tool."""


class AllowedTools(Fields, kw_only=True):
    """The tools that may be called, of those that the request offers."""

    mode: Literal["auto", "required"]
    """As a choice among these tools alone."""
    tools: Annotated[list[AllowedTool], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)]
    """Their names; the model is not shown the others."""


class NamedTool(Fields, kw_only=True):
    """The one tool to call, or those that may be called."""

    function: NamedFunction | None = None
    """The function to call."""
    allowed_tools: AllowedTools | None = None
    """The tools that may be called, where the type is allowed_tools."""
    type: Literal["function", "allowed_tools"] = "function"
    """The kind of choice; each needs the field of its name."""


Messages = Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
Tools = Annotated[list[ChatTool], msgspec.Meta(max_length=MAX_TOOLS)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(RequestFields):
    """A conversation, and how to reply to it."""

    messages: Messages
    """The conversation so far."""
    tools: Tools | None = None
    """Functions that the model may call."""
    documents: list[dict[str, Any]] | None = None
    """Documents for templates that take them."""
    add_generation_prompt: bool | None = None
    """True, but where `continue_final_message` is."""
    continue_final_message: bool | None = None
    """The reply continues the last message instead of beginning one."""
    chat_template: str | None = None
    """A Jinja template instead of the model's; only where the operator trusts those of requests."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the template."""
    enable_thinking: bool | None = None
    """The same as in `chat_template_kwargs`, which comes first."""
    reasoning_effort: ReasoningEffort | None = None
    """For the template, which also gets `enable_thinking`: whether this is not `none`."""
    max_tokens: int | None = None
    """Most tokens of the reply; `max_completion_tokens` comes first."""
    max_completion_tokens: int | None = None
    """The newer name; by default as many as the context holds."""
    logprobs: bool | None = None
    """The reply has the log-probability of each token."""
    top_logprobs: int | None = None
    """Most likely tokens to return at each position; needs `logprobs`."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """none, auto, required, the function to call, or allowed_tools. Default: auto where there are tools and
    the operator allows it."""
    parallel_tool_calls: bool | None = None
    """A message may call several tools. Default: true."""
    include_reasoning: bool | None = None
    """The reply includes the reasoning. Default: true."""
    echo: bool | None = None
    """Begin the reply with the last message, where that is of the same role."""
    include_timings: bool | None = None
    """The reply has `timings`."""
    functions: Any = None
    """Refused: `tools` takes its place."""
    function_call: Any = None
    """Refused, but for none and auto: `tool_choice` takes its place."""
    audio: Any = None
    """Refused: replies are text."""
    modalities: Any = None
    """Refused, but for text."""
    web_search_options: Any = None
    """Refused: nothing is searched."""
    prediction: Any = None
    """Ignored: replies are not predicted."""
    verbosity: Any = None
    """Ignored: the prompt says how long replies are to be."""
