"""The kinds of prompts: a text, a conversation, token ids, embeddings."""

from __future__ import annotations

from typing import TypeAlias

from baton_router.embeds.given_embeds import EmbedsPrompt
from baton_router.text.chat_template import Conversation

TokenIds: TypeAlias = tuple[int, ...]

Prompt: TypeAlias = str | TokenIds | Conversation
AnyPrompt: TypeAlias = Prompt | EmbedsPrompt
