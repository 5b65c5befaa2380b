"""The table of routes for the operator."""

from __future__ import annotations

from functools import partial
from typing import Final

from baton_router.http import operator_routes
from baton_router.http.route import Route, Tag
from baton_router.http.weight_routes import WEIGHT_ROUTES

_CONTROLS: Final = (400, 429, 499, 502, 503, 504)
_route: Final = partial(Route, method="POST", tag=Tag.OPERATOR, errors=_CONTROLS)
"""The fields that these routes share, unless they say otherwise."""

ADAPTER_ROUTES: Final = (
    _route(
        path="/v1/load_lora_adapter",
        operation_id="loadLoraAdapter",
        summary="Load an adapter",
        handler=operator_routes.load_adapter,
        bodies=(operator_routes.LoadAdapterRequest,),
        example={"lora_name": "name", "lora_path": "/adapters/name"},
    ),
    _route(
        path="/v1/unload_lora_adapter",
        operation_id="unloadLoraAdapter",
        summary="Forget an adapter",
        handler=operator_routes.unload_adapter,
        bodies=(operator_routes.UnloadAdapterRequest,),
        example={"lora_name": "name"},
        errors=(400, 404, 503, 504),
    ),
)
"""Routes that add and remove LoRA adapters."""
OPERATOR_ROUTES: Final = (
    _route(
        path="/reset_prefix_cache",
        operation_id="resetPrefixCache",
        summary="Forget cached prefixes",
        handler=operator_routes.reset_prefix_cache,
        query=operator_routes.ResetQuery,
        reply=operator_routes.CacheReset,
    ),
    *(
        _route(
            path=f"/reset_{kind}_cache",
            operation_id=f"reset{kind.title()}Cache",
            summary=f"Nothing: there is no cache of {what}",
            handler=operator_routes.reset_absent_cache,
        )
        for kind, what in (("mm", "images, sound or video"), ("encoder", "encoders"))
    ),
    _route(
        path="/sleep",
        operation_id="sleep",
        summary="Give up the workers' memory",
        handler=operator_routes.sleep,
        query=operator_routes.SleepQuery,
        reply=operator_routes.Asleep,
    ),
    _route(
        path="/wake_up",
        operation_id="wakeUp",
        summary="Take the workers' memory back",
        handler=operator_routes.wake_up,
        query=operator_routes.WakeUpQuery,
        reply=operator_routes.Awakened,
    ),
    _route(
        method="GET",
        path="/is_sleeping",
        operation_id="isSleeping",
        summary="Whether the workers sleep",
        handler=operator_routes.is_sleeping,
        reply=operator_routes.SleepState,
    ),
    _route(
        path="/set_role",
        operation_id="setRole",
        summary="Have a worker prefer prefill, decode, or both",
        handler=operator_routes.set_role,
        query=operator_routes.SetRoleQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    _route(
        path="/drain",
        operation_id="drain",
        summary="Have a worker take no new requests",
        handler=operator_routes.drain,
        query=operator_routes.DrainQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    _route(
        path="/undrain",
        operation_id="undrain",
        summary="Have a worker take requests again",
        handler=operator_routes.undrain,
        query=operator_routes.WorkerQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    _route(
        path="/start_profile",
        operation_id="startProfile",
        summary="Begin a trace of what each worker computes",
        handler=operator_routes.start_profile,
    ),
    _route(
        path="/stop_profile",
        operation_id="stopProfile",
        summary="End the traces and write them",
        handler=operator_routes.stop_profile,
    ),
    _route(
        path="/collective_rpc",
        operation_id="collectiveRpc",
        summary="Call a function at each worker",
        handler=operator_routes.collective_rpc,
        bodies=(operator_routes.CollectiveRpcRequest,),
        example={"method": "platform:node"},
        reply=operator_routes.CollectiveRpcReply,
    ),
    *ADAPTER_ROUTES,
    *WEIGHT_ROUTES,
)
