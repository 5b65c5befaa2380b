"""POST /tokenize and /detokenize: the model's tokenizer. They need no worker."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from baton_core.errors import InvalidRequestError
from baton_router.http.calls import Call
from baton_router.http.chat.request import read_conversation
from baton_router.http.chat.schemas import Messages, ReasoningEffort, Tools
from baton_router.http.errors import renamed
from baton_router.http.route import CONVERTING, Routes, Tag
from baton_router.http.sampling_fields import Fields
from baton_router.text.prompts import Prompt

ROUTES: Final = Routes(method="POST", tag=Tag.TOKENS, errors=CONVERTING)


class TokenizeRequest(Fields, kw_only=True):
    """A text (`prompt`) or a conversation (`messages`)."""

    model: str | None = None
    """A name that `/v1/models` lists. Default: the served model."""
    prompt: str | None = None
    """A text; this or `messages`."""
    messages: Messages | None = None
    """A conversation; this or `prompt`."""
    tools: Tools | None = None
    """Functions that the template offers to the model."""
    documents: list[dict[str, Any]] | None = None
    """Documents for templates that take them."""
    add_special_tokens: bool | None = None
    """Default: true for a text, false for a conversation, whose template writes them."""
    add_generation_prompt: bool | None = None
    """Default: true."""
    continue_final_message: bool | None = None
    """The last message is left open."""
    chat_template: str | None = None
    """A Jinja template instead of the model's; only where the operator trusts those of requests."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the template."""
    enable_thinking: bool | None = None
    """The same as in `chat_template_kwargs`, which comes first."""
    reasoning_effort: ReasoningEffort | None = None
    """For the template."""
    return_token_strs: bool | None = None
    """The reply has the tokens as the vocabulary spells them, too."""


class TokenizeReply(msgspec.Struct, kw_only=True):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType | None = UNSET


class DetokenizeRequest(Fields, kw_only=True):
    """Token ids."""

    model: str | None = None
    """A name that `/v1/models` lists. Default: the served model."""
    tokens: list[int]
    """Token ids."""
    skip_special_tokens: bool | None = None
    """Special tokens are left out. Default: false."""


class DetokenizeReply(msgspec.Struct, kw_only=True):
    """Their text."""

    prompt: str


@ROUTES.route(
    "/tokenize", "tokenize", "Token ids of a text or a conversation", example={"prompt": "The os module"}
)
async def tokenize(call: Call[TokenizeRequest]) -> TokenizeReply:
    """Reply with token ids.

    Raises:
        InvalidRequestError: a field is wrong; the message names it.
        RequestError: as `GenerationService.tokenize`.
    """
    body, service = call.body, call.state.service
    prompt = await call.read(_read_prompt, body)
    token_ids = await service.tokenize(
        prompt, tenant=call.tenant, model=body.model or "", add_special_tokens=body.add_special_tokens
    )
    reply = TokenizeReply(count=len(token_ids), max_model_len=service.max_model_len, tokens=list(token_ids))
    if body.return_token_strs:
        reply.token_strs = await asyncio.to_thread(lambda: list(map(service.tokenizer.spelling, token_ids)))
    return reply


@ROUTES.route("/detokenize", "detokenize", "The text of token ids", example={"tokens": [1, 2, 3]})
async def detokenize(call: Call[DetokenizeRequest]) -> DetokenizeReply:
    """Reply with a text.

    Raises:
        InvalidRequestError: a field is wrong; the message names it.
        RequestError: as `GenerationService.detokenize`.
    """
    body = call.body
    with renamed({"token_ids": "tokens"}):
        text = await call.state.service.detokenize(
            body.tokens,
            tenant=call.tenant,
            model=body.model or "",
            skip_special_tokens=bool(body.skip_special_tokens),
        )
    return DetokenizeReply(prompt=text)


def _read_prompt(body: TokenizeRequest) -> Prompt:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("prompt", body.prompt, "one of prompt and messages")
    return read_conversation(body) if body.prompt is None else body.prompt
