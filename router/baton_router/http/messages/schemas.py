"""The bodies of `/v1/messages`: what comes in. Names and meanings are Anthropic's and vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from baton_router.http.chat.schemas import MAX_TOOLS
from baton_router.http.sampling_fields import Fields

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Block(Fields, tag_field="type", kw_only=True):
    """A part of a message."""

    cache_control: Any = None
    """Ignored: the workers decide what stays cached."""


class TextBlock(Block, tag="text"):
    """A text."""

    text: str
    """The text."""
    citations: Any = None
    """Ignored: earlier replies carry it."""


class ImageBlock(Block, tag="image"):
    """Refused: prompts are text."""

    source: Any = None
    """Not read."""


class DocumentBlock(Block, tag="document"):
    """Refused: prompts are text."""

    source: Any = None
    """Not read."""
    title: Any = None
    """Not read."""
    context: Any = None
    """Not read."""
    citations: Any = None
    """Not read."""


class ToolUseBlock(Block, tag="tool_use"):
    """A call in an earlier reply."""

    id: str
    """The name of the call."""
    name: str
    """The function's name."""
    input: dict[str, Any]
    """Its arguments."""
    caller: Any = None
    """Ignored: earlier replies carry it."""


class ToolReferenceBlock(Block, tag="tool_reference"):
    """A tool that a search has found; the model reads its name."""

    tool_name: str
    """The tool's name."""


class ToolResultBlock(Block, tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    """The call's name."""
    content: str | list[TextBlock | ToolReferenceBlock | ImageBlock | DocumentBlock] | None = None
    """The result: text, or parts of it."""
    is_error: bool | None = None
    """The call failed; the text says how."""


class ThinkingBlock(Block, tag="thinking"):
    """The reasoning of an earlier reply."""

    thinking: str
    """The text."""
    signature: str = ""
    """Ignored: the text is taken as it is."""


class RedactedThinkingBlock(Block, tag="redacted_thinking"):
    """Left out: nobody here can read it."""

    data: str = ""
    """Not read."""


AnyBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ToolUseBlock
    | ToolReferenceBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
)


class InputMessage(Fields, kw_only=True):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system", "ctx", "msg"]
    """The speaker; `ctx` and `msg` are the user. A system message joins the message before it."""
    content: str | list[AnyBlock]
    """A text, or parts."""


class InputTool(Fields, kw_only=True):
    """A tool that the request offers."""

    name: _Name
    """The function's name."""
    description: str | None = None
    """Explains to the model what the function does."""
    input_schema: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    type: str | None = None
    """Refused, but for custom: nothing is called here."""
    strict: bool | None = None
    """Calls that the request demands follow the schema whatever this says."""
    cache_control: Any = None
    """Ignored."""
    eager_input_streaming: Any = None
    """Ignored: arguments are streamed as they come."""


class InputToolChoice(Fields, kw_only=True):
    """The tools that are called."""

    type: Literal["auto", "any", "tool", "none"]
    """The model decides, one or more are called, one of a name is, or none."""
    name: str | None = None
    """The tool's name, where the type is tool."""
    disable_parallel_tool_use: bool | None = None
    """A message calls one tool at most."""


class ThinkingConfig(Fields, kw_only=True):
    """The use of reasoning before an answer."""

    type: Literal["enabled", "disabled", "adaptive"]
    """Reason, do not, or as the chat template has it."""
    budget_tokens: int | None = None
    """Most tokens of reasoning, at least 1024; only where it is enabled."""
    display: Any = None
    """Ignored: all reasoning is shown."""


class OutputFormat(Fields, kw_only=True):
    """A format of the reply."""

    type: Literal["json_schema"]
    """The kind of format."""
    schema: dict[str, Any]
    """JSON schema that the reply follows."""


class OutputConfig(Fields, kw_only=True):
    """Settings of the reply."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """For the chat template, as reasoning_effort of chats."""
    format: OutputFormat | None = None
    """The reply's format."""


class ContextManagement(Fields, kw_only=True):
    """Edits of the conversation before the model reads it."""

    edits: list[dict[str, Any]] | None = None
    """None is made: those that would take something out are named in `x-baton-ignored`."""


class CountRequest(Fields, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: Annotated[list[InputMessage], msgspec.Meta(min_length=1)]
    """The conversation so far. A last message of the assistant is continued."""
    model: str | None = None
    """A name that `/v1/models` lists. Default: the served model."""
    system: str | list[TextBlock] | None = None
    """Text before the conversation."""
    tools: Annotated[list[InputTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    """Functions that the model may call."""
    tool_choice: InputToolChoice | None = None
    """Which of them are called. Default: the model decides, where the operator allows it."""
    thinking: ThinkingConfig | None = None
    """The use of reasoning before the answer. Default: as the chat template has it."""
    output_config: OutputConfig | None = None
    """Settings of the reply."""
    output_format: OutputFormat | None = None
    """The older name of `output_config.format`, which comes first."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    cache_control: Any = None
    """Ignored: the workers decide what stays cached."""
    container: Any = None
    """Refused: nothing is run here."""
    mcp_servers: Any = None
    """Refused: nothing is called here."""
    context_management: ContextManagement | None = None
    """Edits of the conversation before the model reads it."""
    thread: Any = None
    """Refused: no conversation is kept here."""


class MessagesRequest(CountRequest, kw_only=True):
    """A conversation, and how to reply to it."""

    max_tokens: int
    """Most tokens of the reply, over 0."""
    stream: bool | None = None
    """The reply comes in pieces, as server-sent events."""
    stop_sequences: list[str] | None = None
    """Texts that end the reply and are left out of it."""
    temperature: float | None = None
    """Randomness of sampling; 0 takes the most likely token. Default: the model's, else 1."""
    top_p: float | None = None
    """As in chats. Default: the model's, else 1."""
    top_k: int | None = None
    """As in chats. Default: the model's, else 0."""
    cache_salt: str | None = None
    """Prefixes are shared only between requests with the same salt."""
    metadata: Any = None
    """Ignored."""
    service_tier: Any = None
    """Ignored: there is one tier."""
    inference_geo: Any = None
    """Ignored."""
    fallbacks: Any = None
    """Ignored: they are for requests that a model declines, and none is declined here."""
    compaction: Any = None
    """Refused: conversations are not summarized here."""
    kv_transfer_params: Any = None
    """Refused where it asks for something: the router places requests and moves their blocks itself."""
