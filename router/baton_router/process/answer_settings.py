"""Settings of answers, for requests that do not say it themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_router.text.chat_template import ChatDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """Settings of one router."""

    chat: ChatDefaults = field(default_factory=ChatDefaults)
    response_role: str = "assistant"
    """Role of a reply to a chat that does not continue a message."""
    excludes_unused_tools: bool = False
    """Leaves tools out of the prompt of a chat whose `tool_choice` is none."""
    names_token_ids: bool = False
    """Writes tokens of log-probabilities as `token_id:N`."""
    includes_usage: bool = False
    """Ends every stream with its usage."""
