"""The kinds of prompts: a text, a conversation, token ids, embeddings, a pair of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from baton_router.embeds.given_embeds import EmbedsPrompt
from baton_router.text.chat_template import Conversation

TokenIds: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPair:
    """Two texts that a cross-encoder reads together, such as a query and a document."""

    first: str
    second: str


Prompt: TypeAlias = str | TokenIds | Conversation
AnyPrompt: TypeAlias = Prompt | EmbedsPrompt
