"""The bodies of `/v1/responses`: what comes in. Names and meanings are OpenAI's and vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from baton_router.http.chat.schemas import MAX_TOOLS, ReasoningEffort
from baton_router.http.response_format import JsonObjectFormat, StructuredOutputs, TaggedFormat, TextFormat
from baton_router.http.sampling_fields import CallFields, Fields

LOGPROBS: Final = "message.output_text.logprobs"
"""The value of `include` that asks for log-probabilities."""
_Label = Annotated[str, msgspec.Meta(max_length=512)]


class ContentPart(Fields, kw_only=True):
    """A part of an item's content."""

    type: str
    """The kind: input_text, output_text, reasoning_text, summary_text or refusal; others are refused."""
    text: str | None = None
    """The text."""
    refusal: str | None = None
    """The text of a refusal."""
    annotations: Any = None
    """Ignored: earlier replies carry it."""
    logprobs: Any = None
    """Ignored: earlier replies carry it."""


class InputItem(Fields, kw_only=True):
    """An item of the conversation; its type says which fields it has."""

    type: str | None = "message"
    """The kind: message, reasoning, function_call, custom_tool_call, local_shell_call, each of these three
    with `_output`, item_reference, or web_search_call, which is ignored; others are refused."""
    id: str | None = None
    """The name of the item; of a reference that of an item of a stored response's output."""
    status: str | None = None
    """Ignored: earlier replies carry it."""
    role: Literal["user", "assistant", "system", "developer"] | None = None
    """The speaker of a message."""
    content: str | list[ContentPart] | None = None
    """Text or parts of a message; parts of reasoning."""
    call_id: str | None = None
    """The call that is made, or whose result comes."""
    name: str | None = None
    """The function that is called."""
    namespace: str | None = None
    """The namespace of that function, where it has one."""
    arguments: str | None = None
    """Its arguments, as JSON text."""
    input: str | None = None
    """The text that a custom tool is called with."""
    action: dict[str, Any] | None = None
    """The command of a local_shell_call, which the model gets as a call of local_shell."""
    output: str | list[ContentPart] | None = None
    """The result of a call: text, or parts of it."""
    summary: list[ContentPart] | None = None
    """Summaries of reasoning, read where it has no content."""
    encrypted_content: Any = None
    """Ignored: reasoning has its text as content."""
    phase: Any = None
    """Ignored."""

    @property
    def kind(self) -> str:
        """The type; a message where it is null."""
        return self.type or "message"


class FunctionTool(Fields, kw_only=True):
    """A function of a namespace."""

    type: str
    """The kind: function; others are ignored."""
    name: str = ""
    """The function's name, or that of the namespace."""
    description: str | None = None
    """Explains to the model what the function does."""
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Calls that the request demands follow the schema whatever this says."""


class ResponseTool(FunctionTool, kw_only=True):
    """A tool that the request offers."""

    type: str
    """The kind: function or namespace; others are ignored, as no tool is run here."""
    tools: Annotated[list[FunctionTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    """The functions of a namespace; the model knows each as `namespace__name`."""


class AllowedFunction(Fields, kw_only=True):
    """A tool among those that may be called."""

    type: Literal["function"]
    """The kind."""
    name: Annotated[str, msgspec.Meta(min_length=1)]
    """The function's name; of one in a namespace `namespace__name`."""


class ToolChoice(Fields, kw_only=True):
    """The one tool to call, or those that may be called."""

    type: str
    """The kind: function or allowed_tools; others are refused."""
    name: str = ""
    """The function's name; of one in a namespace `namespace__name`."""
    mode: Literal["auto", "required"] | None = None
    """As a choice among the allowed tools alone."""
    tools: Annotated[list[AllowedFunction], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)] | None = None
    """The allowed tools; the model is not shown the others."""


class SchemaFormat(TaggedFormat, kw_only=True, tag="json_schema"):
    """JSON that follows a schema."""

    name: str
    """The schema's name."""
    schema: dict[str, Any]
    """The JSON schema."""
    description: str | None = None
    """The schema's purpose."""
    strict: bool | None = None
    """The schema is enforced whatever this says."""


class TextSettings(Fields, kw_only=True):
    """Settings of the reply's text."""

    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    """The format of the text: text, json_object or json_schema."""
    verbosity: Any = None
    """Ignored: the prompt says how long replies are to be."""


class ReasoningSettings(Fields, kw_only=True):
    """Settings of the reasoning before the reply."""

    effort: ReasoningEffort | None = None
    """For the chat template, as reasoning_effort of chats."""
    summary: Any = None
    """Ignored: all reasoning is shown."""
    generate_summary: Any = None
    """Ignored: the older name of `summary`."""


class ResponsesRequest(CallFields, kw_only=True):
    """A conversation, and how to reply to it."""

    input: str | list[InputItem]
    """The text of the user, or items of the conversation."""
    instructions: str | None = None
    """Text before the conversation; that of an earlier response is not taken over."""
    previous_response_id: str | None = None
    """A stored response whose conversation is continued."""
    store: bool | None = None
    """The response is kept for a while. Default: true, where the operator allows it."""
    background: bool | None = None
    """The reply comes at once, and the response is fetched by its id, whoever disconnects; needs `store`."""
    stream: bool | None = None
    """The reply comes in pieces, as server-sent events."""
    stream_options: Any = None
    """Ignored: events are not padded."""
    tools: Annotated[list[ResponseTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    """Functions that the model may call, and namespaces of them."""
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    """none, auto, required, the function to call, or allowed_tools. Default: auto where there are tools."""
    parallel_tool_calls: bool | None = None
    """A reply may call several tools. Default: true."""
    max_output_tokens: int | None = None
    """Most tokens of the reply, reasoning included; by default as many as the context holds."""
    temperature: float | None = None
    """Randomness of sampling; 0 takes the most likely token. Default: the model's, else 1."""
    top_p: float | None = None
    """As in chats. Default: the model's, else 1."""
    top_k: int | None = None
    """As in chats. Default: the model's, else 0."""
    min_p: float | None = None
    """As in chats. Default: the model's, else 0."""
    seed: int | None = None
    """The same seed gives the same tokens. Default: a random one."""
    stop: str | list[str] | None = None
    """Texts that end the reply and are left out of it."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the reply."""
    ignore_eos: bool | None = None
    """Generation continues after the model's end-of-sequence token."""
    presence_penalty: float | None = None
    """Lowers tokens that the output has, -2 to 2. Default: 0."""
    frequency_penalty: float | None = None
    """Lowers tokens by how often the output has them, -2 to 2. Default: 0."""
    repetition_penalty: float | None = None
    """As in chats. Default: the model's, else 1."""
    logit_bias: dict[str, float] | None = None
    """Scores to add, by token id."""
    structured_outputs: StructuredOutputs | None = None
    """A constraint on the output; `text.format` is OpenAI's."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    vllm_xargs: dict[str, Any] | None = None
    """`extra_args` of `SamplingParams`."""
    include: list[str] | None = None
    """message.output_text.logprobs asks for log-probabilities; other values ask for nothing here."""
    top_logprobs: int | None = None
    """Most likely tokens to return at each position; needs `include`."""
    include_reasoning: bool | None = None
    """The reply includes the reasoning. Default: true."""
    text: TextSettings | None = None
    """Settings of the reply's text."""
    reasoning: ReasoningSettings | None = None
    """Settings of the reasoning before the reply."""
    truncation: Literal["auto", "disabled"] | None = None
    """Where the prompt is too long, auto keeps as many of its last tokens as fit. Default: disabled."""
    request_id: str | None = None
    """The name of the request, instead of the header `x-request-id`; the response's id is made of it."""
    prompt_cache_key: str | None = None
    """The same, as OpenAI calls it; `session_id` comes first."""
    metadata: dict[str, str] | None = None
    """Returned as it is: up to 16 texts of 512 characters, with names of 64."""
    user: _Label | None = None
    """Returned as it is."""
    safety_identifier: _Label | None = None
    """Returned as it is."""
    service_tier: Any = None
    """Ignored: there is one tier."""
    prompt_cache_retention: Any = None
    """Ignored: the workers decide what stays cached."""
    prompt: Any = None
    """Refused: no prompts are stored here."""
    conversation: Any = None
    """Refused: `previous_response_id` continues a conversation."""
    max_tool_calls: Any = None
    """Refused: it bounds tools that a server runs."""
    context_management: Any = None
    """Refused where it asks for something: the conversation is taken as it is."""
    kv_transfer_params: Any = None
    """Refused where it asks for something: the router places requests and moves their blocks itself."""
