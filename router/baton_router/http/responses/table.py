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
from baton_router.http.responses.schemas import ResponsesRequest
from baton_router.http.route import BATCH_PRIORITY, Route, Tag

_PATH: Final = "/v1/responses/{response_id}"
RESPONSE_ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/responses",
        operation_id="createResponse",
        tag=Tag.RESPONSES,
        summary="Answer a conversation, in the format of the Responses API",
        handler=create_response,
        bodies=(ResponsesRequest,),
        batch_defaults={"priority": BATCH_PRIORITY, "store": False},
        example={"input": "What is os.path?", "max_output_tokens": 32},
        reply=Response,
        chunk=StreamEvent,
        errors=(404, 422, 429, 502, 503, 504),
        dialect=RESPONSES,
    ),
    Route(
        method="GET",
        path=f"{_PATH}/input_items",
        operation_id="listInputItems",
        tag=Tag.RESPONSES,
        summary="The items of the conversation before a response",
        handler=stored.list_items,
        query=stored.ItemsQuery,
        reply=ItemList,
        errors=(400, 404, 503),
    ),
    Route(
        method="POST",
        path=f"{_PATH}/cancel",
        operation_id="cancelResponse",
        tag=Tag.RESPONSES,
        summary="End a response that is made in the background",
        handler=stored.cancel_response,
        reply=Response,
        errors=(400, 404, 503),
    ),
    Route(
        method="GET",
        path=_PATH,
        operation_id="getResponse",
        tag=Tag.RESPONSES,
        summary="A response that is kept, or its events",
        handler=stored.show_response,
        query=stored.ResponseQuery,
        reply=Response,
        chunk=StreamEvent,
        errors=(400, 404, 503),
        dialect=RESPONSES,
    ),
    Route(
        method="DELETE",
        path=_PATH,
        operation_id="deleteResponse",
        tag=Tag.RESPONSES,
        summary="Forget a response",
        handler=stored.delete_response,
        reply=DeletedResponse,
        errors=(404, 503),
    ),
)
