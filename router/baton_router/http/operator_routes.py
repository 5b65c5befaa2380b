"""Routes for the operator, off unless `--enable-operator-routes` is given."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec
from starlette.responses import PlainTextResponse, Response

from baton_core.errors import STATUS, ErrorCode, RequestError
from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_router.http.calls import Call
from baton_router.http.errors import HttpError, renamed
from baton_router.http.route import Query, Routes, Tag
from baton_router.http.sampling_fields import Fields
from baton_router.operations.operations import DEFAULT_TIMEOUT_S, checked_timeout, read_results

_CONTROLS: Final = (400, 429, 499, 502, 503, 504)
ROUTES: Final = Routes(method="POST", tag=Tag.OPERATOR, errors=_CONTROLS)
ADAPTERS: Final = Routes(method="POST", tag=Tag.OPERATOR, errors=_CONTROLS)
"""Routes that add and remove LoRA adapters."""


class LoadAdapterRequest(Fields, kw_only=True):
    """Load an adapter under a name."""

    lora_name: str
    """The adapter's name."""
    lora_path: str
    """The adapter's folder."""
    load_inplace: bool | None = None
    """Takes the place of one with that name."""


class UnloadAdapterRequest(Fields, kw_only=True):
    """Forget an adapter."""

    lora_name: str
    """The adapter's name."""
    lora_int_id: int | None = None
    """The adapter's number."""


class CollectiveRpcRequest(Fields, kw_only=True):
    """Call a method of each worker's runner, or a function that `method` names as package.module:function."""

    method: str
    """A method of the runner, or package.module:function."""
    args: list[Any] = msgspec.field(default_factory=list)
    """Arguments by position."""
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments by name."""
    timeout: float | None = None
    """In seconds."""


class CollectiveRpcReply(msgspec.Struct, kw_only=True):
    """Results of each worker's call, in the order of the workers' names."""

    results: list[Any]


class SleepState(msgspec.Struct, kw_only=True):
    """Sleep state of the workers."""

    is_sleeping: bool
    """True if any worker sleeps."""


class Asleep(msgspec.Struct, kw_only=True):
    """The workers sleep, at that level."""

    level: int
    status: Literal["sleeping"] = "sleeping"


class Awakened(msgspec.Struct, kw_only=True):
    """The workers have the parts that the call names."""

    status: Literal["awake", "sleeping"]
    """Sleeping, if any worker lacks another part."""
    tags: list[str] | None
    """As the call names them."""


class CacheReset(msgspec.Struct, kw_only=True):
    """Blocks of all workers together."""

    num_forgotten: int
    num_in_use: int
    """Blocks that requests or transfers use; they keep their content."""
    success: bool
    """True if no block was in use, so that all are forgotten."""


class OpenWork(msgspec.Struct, kw_only=True):
    """The open work of a worker, which is empty when all are 0."""

    num_requests: int
    num_offers: int
    """Prompts whose blocks are kept for other workers."""
    num_transfers: int


class SleepQuery(Query, kw_only=True):
    level: int = 1
    """0 pauses, 1 gives up the KV cache, 2 the weights too."""
    mode: str | None = None
    """The fate of open requests: abort ends them with an error, wait lets them end, level 0 can keep them.

    Without a mode level 0 keeps them, and the others are refused while there are any.
    """


class ResetQuery(Query, kw_only=True):
    reset_running_requests: bool = False
    """Running requests lose their blocks too, and compute their tokens again."""
    reset_external: bool = False
    """Without effect: no cache is outside the workers."""


class WakeUpQuery(Query, kw_only=True):
    tags: list[str] = msgspec.field(default_factory=list)
    """Any of weights, kv_cache and scheduling; an empty list means all."""


class WorkerQuery(Query, kw_only=True):
    worker_id: str
    """The worker's id, as `/debug/cluster` names it."""


class DrainQuery(WorkerQuery, kw_only=True):
    force: bool = False
    """Also when no worker would be left that prefills, or decodes."""


class SetRoleQuery(DrainQuery, kw_only=True):
    role: str
    """prefill, decode or mixed."""


@ROUTES.route("/reset_prefix_cache", "resetPrefixCache", "Forget cached prefixes")
async def reset_prefix_cache(call: Call[None], query: ResetQuery) -> CacheReset:
    argument = {"reset_running_requests": query.reset_running_requests}
    results = await ask_workers(call, ControlAction.RESET_PREFIX_CACHE, argument)
    forgotten, in_use = (sum(result[name] for result in results) for name in ("num_forgotten", "num_in_use"))
    return CacheReset(num_forgotten=forgotten, num_in_use=in_use, success=not in_use)


@ROUTES.route("/reset_mm_cache", "resetMmCache", "Nothing: there is no cache of images, sound or video")
@ROUTES.route("/reset_encoder_cache", "resetEncoderCache", "Nothing: there is no cache of encoders")
async def reset_absent_cache(call: Call[None]) -> Response:
    """Do nothing: models of text alone are served, so there is no cache of other inputs or of encoders."""
    return Response()


@ROUTES.route("/sleep", "sleep", "Give up the workers' memory")
async def sleep(call: Call[None], query: SleepQuery) -> Asleep:
    if query.mode is None:
        await ask_workers(call, ControlAction.SLEEP, {"level": query.level})
    else:
        pauses = call.state.service.router.pauses
        await control(call, partial(pauses.sleep, query.level, query.mode, DEFAULT_TIMEOUT_S))
    return Asleep(level=query.level)


@ROUTES.route("/wake_up", "wakeUp", "Take the workers' memory back")
async def wake_up(call: Call[None], query: WakeUpQuery) -> Awakened:
    tags = query.tags
    await ask_workers(call, ControlAction.WAKE_UP, {"tags": tags})
    is_sleeping = any(await ask_workers(call, ControlAction.IS_SLEEPING))
    return Awakened(status="sleeping" if is_sleeping else "awake", tags=tags or None)


@ROUTES.route("/is_sleeping", "isSleeping", "Whether the workers sleep", method="GET")
async def is_sleeping(call: Call[None]) -> SleepState:
    return SleepState(is_sleeping=any(await ask_workers(call, ControlAction.IS_SLEEPING)))


_of_worker: Final = partial(ROUTES.route, errors=(404, *_CONTROLS))


@_of_worker("/set_role", "setRole", "Have a worker prefer prefill, decode, or both")
async def set_role(call: Call[None], query: SetRoleQuery) -> OpenWork:
    return await _change(call, ControlAction.SET_ROLE, query, {"role": query.role, "force": query.force})


@_of_worker("/drain", "drain", "Have a worker take no new requests")
async def drain(call: Call[None], query: DrainQuery) -> OpenWork:
    return await _change(call, ControlAction.DRAIN, query, {"force": query.force})


@_of_worker("/undrain", "undrain", "Have a worker take requests again")
async def undrain(call: Call[None], query: WorkerQuery) -> OpenWork:
    return await _change(call, ControlAction.UNDRAIN, query, {})


@ROUTES.route("/start_profile", "startProfile", "Begin a trace of what each worker computes")
async def start_profile(call: Call[None]) -> Response:
    await ask_workers(call, ControlAction.START_PROFILE)
    return Response()


@ROUTES.route("/stop_profile", "stopProfile", "End the traces and write them")
async def stop_profile(call: Call[None]) -> Response:
    await ask_workers(call, ControlAction.STOP_PROFILE)
    return Response()


@ROUTES.route(
    "/collective_rpc", "collectiveRpc", "Call a function at each worker", example={"method": "platform:node"}
)
async def collective_rpc(call: Call[CollectiveRpcRequest]) -> CollectiveRpcReply:
    body = call.body
    timeout_s = DEFAULT_TIMEOUT_S if body.timeout is None else checked_timeout("timeout", body.timeout)
    argument = {"method": body.method, "args": body.args, "kwargs": body.kwargs}
    call.room.release()
    results = await ask_workers(call, ControlAction.COLLECTIVE_RPC, argument, timeout_s)
    return CollectiveRpcReply(results=results)


@ADAPTERS.route(
    "/v1/load_lora_adapter",
    "loadLoraAdapter",
    "Load an adapter",
    example={"lora_name": "name", "lora_path": "/adapters/name"},
)
async def load_adapter(call: Call[LoadAdapterRequest]) -> Response:
    """Reply with plain text once the adapter can be asked for.

    Raises:
        HttpError: a worker cannot use it.
    """
    body = call.body
    try:
        with call.state.service.open_call():
            async with call.while_connected():
                await call.state.service.adapter_loading.load(
                    body.lora_name, body.lora_path, replaces=bool(body.load_inplace)
                )
    except RequestError as error:
        raise HttpError(STATUS[error.code].http, error.code, str(error), param="lora_path") from None
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@ADAPTERS.route(
    "/v1/unload_lora_adapter",
    "unloadLoraAdapter",
    "Forget an adapter",
    example={"lora_name": "name"},
    errors=(400, 404, 503, 504),
)
async def unload_adapter(call: Call[UnloadAdapterRequest]) -> Response:
    """Reply with plain text; requests that have begun go on.

    Raises:
        HttpError: 404, there is none of that name.
        RequestError: UNAVAILABLE, Redis is away.
    """
    name = call.body.lora_name
    try:
        await call.state.service.adapter_loading.unload(name)
    except RequestError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        raise HttpError(404, "model_not_found", str(error), param="lora_name") from None
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


async def _change(
    call: Call[None], action: ControlAction, query: WorkerQuery, argument: Mapping[str, Any]
) -> OpenWork:
    try:
        with renamed({"worker_ids": "worker_id"}):
            (work,) = await ask_workers(call, action, argument, worker_ids=(query.worker_id,))
    except RequestError as error:
        text = str(error).replace("worker_ids has", "worker_id is", 1)
        raise HttpError(STATUS[error.code].http, error.code, text, param="worker_id") from None
    return OpenWork(**work)


async def ask_workers(
    call: Call[Any],
    action: ControlAction,
    argument: Mapping[str, Any] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    worker_ids: Sequence[str] = (),
) -> list[Any]:
    """Return what each worker named, or each of all, replied.

    Raises:
        HttpError: one of them could not do it; the message has the reason.
    """
    ask = call.state.service.router.operations.control
    return await control(call, partial(ask, action, json.dumps(argument or {}), timeout_s, worker_ids))


async def control(call: Call[Any], ask: Callable[[], Awaitable[Mapping[str, ControlResult]]]) -> list[Any]:
    """Return what each worker that `ask` asks replied, in the order of their names.

    Raises:
        HttpError: one of them could not do it; the message has the reason.
    """
    with call.state.service.open_call():
        async with call.while_connected():
            results = await ask()
    try:
        return read_results(results)
    except RequestError as error:
        raise HttpError(STATUS[error.code].http, error.code, str(error)) from None
