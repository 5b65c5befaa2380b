"""The routes of the Responses API."""

from __future__ import annotations

from typing import Final

from baton_router.http.responses import stored
from baton_router.http.responses.replies import (
    RESPONSES,
    DeletedResponse,
    ItemList,
    Response,
    StreamEvent,
)
from baton_router.http.responses.responses import create_response
from baton_router.http.route import BATCH_PRIORITY, Route, Tag

_PATH: Final = "/v1/responses/{response_id}"
RESPONSE_ROUTES: Final = (
    Route(
        "/v1/responses",
        "createResponse",
        "Answer a conversation, in the format of the Responses API",
        create_response,
        method="POST",
        tag=Tag.RESPONSES,
        batch_defaults={"priority": BATCH_PRIORITY, "store": False},
        example={"input": "What is os.path?", "max_output_tokens": 32},
        reply=Response,
        chunk=StreamEvent,
        errors=(404, 422, 429, 502, 503, 504),
        dialect=RESPONSES,
    ),
    Route(
        f"{_PATH}/input_items",
        "listInputItems",
        "The items of the conversation before a response",
        stored.list_items,
        tag=Tag.RESPONSES,
        query=stored.ItemsQuery,
        reply=ItemList,
        errors=(400, 404, 503),
    ),
    Route(
        f"{_PATH}/cancel",
        "cancelResponse",
        "End a response that is made in the background",
        stored.cancel_response,
        method="POST",
        tag=Tag.RESPONSES,
        reply=Response,
        errors=(400, 404, 503),
    ),
    Route(
        _PATH,
        "getResponse",
        "A response that is kept, or its events",
        stored.show_response,
        tag=Tag.RESPONSES,
        query=stored.ResponseQuery,
        reply=Response,
        chunk=StreamEvent,
        errors=(400, 404, 503),
        dialect=RESPONSES,
    ),
    Route(
        _PATH,
        "deleteResponse",
        "Forget a response",
        stored.delete_response,
        method="DELETE",
        tag=Tag.RESPONSES,
        reply=DeletedResponse,
        errors=(404, 503),
    ),
)
