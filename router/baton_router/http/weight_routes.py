"""Routes that pause generation and replace the weights, under vLLM's names, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from baton_core.errors import ErrorCode
from baton_core.sessions.control_messages import UPDATE_TIMEOUT_S, ControlAction
from baton_core.sessions.weight_arguments import check_init_info, read_update_info
from baton_router.http.calls import Call
from baton_router.http.errors import HttpError
from baton_router.http.operator_routes import ask_workers, control
from baton_router.http.route import Query, Routes, Tag
from baton_router.http.sampling_fields import Fields
from baton_router.operations.operations import DEFAULT_TIMEOUT_S

ROUTES: Final = Routes(method="POST", tag=Tag.OPERATOR, errors=(400, 409, 429, 499, 502, 503, 504))


class PauseQuery(Query, kw_only=True):
    mode: str = "abort"
    """The fate of running requests: abort ends them with an error, wait lets them end, keep stops them."""
    clear_cache: bool = True
    """Forget cached prefixes; not with keep."""
    wait_for_inflight_requests: bool = False
    """The same as mode wait."""


class WorldSizeQuery(Query, kw_only=True):
    include_dp: bool = True
    """Count all workers; else one, for each holds the whole model."""


class InitRequest(Fields, kw_only=True):
    """Agree on the way of the weights."""

    init_info: dict[str, Any]
    """Empty, or the backend, which is files."""


class StartRequest(Fields, kw_only=True):
    """Begin an update."""

    is_checkpoint_format: bool = True
    """True: tensors have the names and shapes of the checkpoint. Nothing else is taken."""


class UpdateRequest(Fields, kw_only=True):
    """Check a new version of the weights at every worker."""

    update_info: dict[str, Any]
    """The field path: a folder of safetensors files that every worker reads."""


class PauseState(msgspec.Struct, kw_only=True):
    is_paused: bool
    """True if requests that have not begun wait for `/resume`."""


class Status(msgspec.Struct, kw_only=True):
    status: str


class Done(msgspec.Struct, kw_only=True):
    message: str


class WorldSize(msgspec.Struct, kw_only=True):
    world_size: int


@ROUTES.route("/pause", "pauseGeneration", "Have new requests wait, and end or stop those that run")
async def pause(call: Call[None], query: PauseQuery) -> Status:
    mode = "wait" if query.wait_for_inflight_requests else query.mode
    pause_all = call.state.service.router.pauses.pause
    await control(call, partial(pause_all, mode, DEFAULT_TIMEOUT_S, clear_cache=query.clear_cache))
    return Status(status="paused")


@ROUTES.route("/resume", "resumeGeneration", "End a pause")
async def resume(call: Call[None]) -> Status:
    await control(call, partial(call.state.service.router.pauses.resume, DEFAULT_TIMEOUT_S))
    return Status(status="resumed")


@ROUTES.route("/is_paused", "isPaused", "Whether generation is paused", method="GET")
async def is_paused(call: Call[None]) -> PauseState:
    return PauseState(is_paused=call.state.service.router.pauses.is_paused)


@ROUTES.route(
    "/init_weight_transfer_engine",
    "initWeightTransferEngine",
    "Agree on the way in which new weights come",
    example={"init_info": {}},
)
async def init_weight_transfer_engine(call: Call[InitRequest]) -> Done:
    check_init_info(call.body.init_info)
    return Done(message="Weight transfer initialized")


@ROUTES.route(
    "/start_weight_update",
    "startWeightUpdate",
    "Begin an update of the weights",
    needs_body=False,
    example={"is_checkpoint_format": True},
)
async def start_weight_update(call: Call[StartRequest]) -> Done:
    argument = {"is_checkpoint_format": call.body.is_checkpoint_format}
    await ask_workers(call, ControlAction.START_WEIGHT_UPDATE, argument)
    return Done(message="Weight update started")


@ROUTES.route(
    "/update_weights",
    "updateWeights",
    "Check new weights at every worker",
    example={"update_info": {"path": "/models/new"}},
)
async def update_weights(call: Call[UpdateRequest]) -> Done:
    await _update(call, ControlAction.UPDATE_WEIGHTS, {"path": read_update_info(call.body.update_info)})
    return Done(message="Weights updated")


@ROUTES.route("/finish_weight_update", "finishWeightUpdate", "Have every worker compute with the new weights")
async def finish_weight_update(call: Call[None]) -> Done:
    await _update(call, ControlAction.FINISH_WEIGHT_UPDATE, {})
    return Done(message="Weight update finished")


@ROUTES.route("/get_world_size", "getWorldSize", "How many workers there are", method="GET")
async def get_world_size(call: Call[None], query: WorldSizeQuery) -> WorldSize:
    num_workers = len(call.state.service.router.fleet.workers())
    return WorldSize(world_size=num_workers if query.include_dp else 1)


async def _update(call: Call[Any], action: ControlAction, argument: Mapping[str, Any]) -> None:
    """Take a step of an update; files that no worker can load are the caller's error.

    Raises:
        HttpError: it could not be done.
    """
    try:
        await ask_workers(call, action, argument, UPDATE_TIMEOUT_S)
    except HttpError as error:
        if error.code != ErrorCode.INVALID_MODEL:
            raise
        raise HttpError(400, error.code, str(error), param="update_info") from None
