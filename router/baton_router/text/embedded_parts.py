"""Embeddings as parts of a conversation's messages: `{"type": "prompt_embeds", "data": base64}`.

The template gets a mark in the place of each, which no client can guess; what it writes is tokenized around
the marks.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_core.prompt_embeds import PLACEHOLDER, PromptEmbeds
from baton_router.embeds.given_embeds import FIELD, EmbedsLimits, PromptTokens, read_encoded
from baton_router.text.chat_template import Conversation

MAX_PARTS: Final = 256


def has_embeds(conversation: Conversation) -> bool:
    """True if a message has embeddings among its parts."""
    return any(_is_embeds(part) for message in conversation.messages for part in _parts(message))


def encode_embedded(
    conversation: Conversation,
    limits: EmbedsLimits,
    render: Callable[[Conversation], str],
    encode: Callable[[str], tuple[int, ...]],
) -> PromptTokens:
    """Return the tokens of a conversation with embeddings; `encode` is for a piece of what `render` returns.

    Raises:
        InvalidRequestError: a part is no embeddings, or the template does not write each part once.
    """
    mark = f"embeds{secrets.token_hex(16)}n"
    found: list[PromptEmbeds] = []
    messages = []
    for index, message in enumerate(conversation.messages):
        content: Any = message.get("content")
        for place, part in enumerate(_parts(message)):
            if not _is_embeds(part):
                continue
            name = f"messages[{index}].content[{place}].data"
            if len(found) == MAX_PARTS:
                raise InvalidRequestError(name, f"part {MAX_PARTS + 1}", f"at most {MAX_PARTS} of {FIELD}")
            text = f"{mark}{len(found)}."
            found.append(read_encoded(name, part.get("data"), limits))
            content = [*content[:place], {"type": "text", "text": text}, *content[place + 1 :]]
        messages.append({**message, "content": content} if "content" in message else message)
    text, *rest = re.split(rf"{mark}(\d+)\.", render(replace(conversation, messages=tuple(messages))))
    numbers = [int(number) for number in rest[::2]]
    if sorted(numbers) != list(range(len(found))):
        allowed = f"each once: the chat template writes {len(numbers)} of {len(found)}"
        raise InvalidRequestError("messages", f"{FIELD} parts", allowed)
    return _joined(text, [found[number] for number in numbers], rest[1::2], encode)


def _joined(
    text: str, embeds: list[PromptEmbeds], texts: list[str], encode: Callable[[str], tuple[int, ...]]
) -> PromptTokens:
    token_ids = encode(text) if text else ()
    placed = []
    for one, behind in zip(embeds, texts, strict=True):
        placed.append(replace(one, start=len(token_ids)))
        token_ids += (PLACEHOLDER,) * one.num_tokens + (encode(behind) if behind else ())
    return PromptTokens(token_ids=token_ids, embeds=tuple(placed))


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return list(content) if isinstance(content, list | tuple) else []


def _is_embeds(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == FIELD
