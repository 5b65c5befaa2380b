"""The model, by each of its names."""

from __future__ import annotations

from typing import Any

import msgspec

from baton_core.errors import ErrorCode, RequestError
from baton_router.http.calls import Call
from baton_router.validation import check_model


class Model(msgspec.Struct, kw_only=True):
    """One name of the model."""

    id: str
    object: str = "model"
    created: int
    """When the router started, in seconds since 1970."""
    owned_by: str = "baton"
    root: str
    """The first of its names."""
    parent: str | None = None
    max_model_len: int
    permission: list[dict[str, Any]] = []


class ModelList(msgspec.Struct, kw_only=True):
    """All names of the model."""

    object: str = "list"
    data: list[Model]


async def list_models(call: Call[None]) -> None:
    await call.reply(ModelList(data=[_describe(call, name) for name in call.site.door.model_names]))


async def show_model(call: Call[None]) -> None:
    """Raises RequestError: NOT_FOUND."""
    name = call.request.path_params["model"]
    if not name:
        raise RequestError(ErrorCode.NOT_FOUND, "model is ''; allowed: a served name")
    check_model(name, call.site.door.model_names)
    await call.reply(_describe(call, name))


def _describe(call: Call[None], name: str) -> Model:
    door = call.site.door
    return Model(
        id=name,
        created=call.site.started_at,
        root=door.model_names[0],
        max_model_len=door.max_model_len,
    )
