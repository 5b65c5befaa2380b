"""POST /invocations: one route for whatever generates, as Amazon SageMaker calls it."""

from __future__ import annotations

from typing import Any

from baton_router.http.calls import Call
from baton_router.http.chat.completions import chat
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.completions.completions import complete


async def invoke(call: Call[Any]) -> None:
    """Handle a body with `messages` as a conversation, another as a completion.

    Raises:
        InvalidRequestError: as `chat` and `complete`.
        RequestError: as `chat` and `complete`.
    """
    await (chat(call) if isinstance(call.body, ChatRequest) else complete(call))
