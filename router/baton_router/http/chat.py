"""POST /v1/chat/completions."""

from __future__ import annotations

from baton_router.http.calls import Call
from baton_router.http.chat_answer import ChatAnswer
from baton_router.http.chat_request import chat_names, read_chat
from baton_router.http.chat_schemas import ChatRequest
from baton_router.http.generating import generating
from baton_router.http.sampling_fields import generation_requests


async def chat(call: Call[ChatRequest]) -> None:
    """Answer a conversation, whole or as a stream.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        RequestError: as `generating`.
    """
    body, site = call.body, call.site
    with chat_names(body):
        plan = read_chat(body, site.settings, site.door.model.sampling_defaults)
        requests = generation_requests(call, body, [plan.conversation], plan.given)
        async with generating(call, requests) as generation:
            answer = ChatAnswer(call, plan, generation)
            if body.stream:
                await call.stream(answer.chunks())
            else:
                await call.reply(await answer.whole())
