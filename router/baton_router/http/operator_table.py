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
        "/v1/load_lora_adapter",
        "loadLoraAdapter",
        "Load an adapter",
        operator_routes.load_adapter,
        example={"lora_name": "name", "lora_path": "/adapters/name"},
    ),
    _route(
        "/v1/unload_lora_adapter",
        "unloadLoraAdapter",
        "Forget an adapter",
        operator_routes.unload_adapter,
        example={"lora_name": "name"},
        errors=(400, 404, 503, 504),
    ),
)
"""Routes that add and remove LoRA adapters."""
OPERATOR_ROUTES: Final = (
    _route(
        "/reset_prefix_cache",
        "resetPrefixCache",
        "Forget cached prefixes",
        operator_routes.reset_prefix_cache,
        query=operator_routes.ResetQuery,
        reply=operator_routes.CacheReset,
    ),
    *(
        _route(
            f"/reset_{kind}_cache",
            f"reset{kind.title()}Cache",
            f"Nothing: there is no cache of {what}",
            operator_routes.reset_absent_cache,
        )
        for kind, what in (("mm", "images, sound or video"), ("encoder", "encoders"))
    ),
    _route(
        "/sleep",
        "sleep",
        "Give up the workers' memory",
        operator_routes.sleep,
        query=operator_routes.SleepQuery,
        reply=operator_routes.Asleep,
    ),
    _route(
        "/wake_up",
        "wakeUp",
        "Take the workers' memory back",
        operator_routes.wake_up,
        query=operator_routes.WakeUpQuery,
        reply=operator_routes.Awakened,
    ),
    _route(
        "/is_sleeping",
        "isSleeping",
        "Whether the workers sleep",
        operator_routes.is_sleeping,
        reply=operator_routes.SleepState,
        method="GET",
    ),
    _route(
        "/set_role",
        "setRole",
        "Have a worker prefer prefill, decode, or both",
        operator_routes.set_role,
        query=operator_routes.SetRoleQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    _route(
        "/drain",
        "drain",
        "Have a worker take no new requests",
        operator_routes.drain,
        query=operator_routes.DrainQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    _route(
        "/undrain",
        "undrain",
        "Have a worker take requests again",
        operator_routes.undrain,
        query=operator_routes.WorkerQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    _route(
        "/start_profile",
        "startProfile",
        "Begin a trace of what each worker computes",
        operator_routes.start_profile,
    ),
    _route("/stop_profile", "stopProfile", "End the traces and write them", operator_routes.stop_profile),
    _route(
        "/collective_rpc",
        "collectiveRpc",
        "Call a function at each worker",
        operator_routes.collective_rpc,
        example={"method": "platform:node"},
        reply=operator_routes.CollectiveRpcReply,
    ),
    *ADAPTER_ROUTES,
    *WEIGHT_ROUTES,
)
