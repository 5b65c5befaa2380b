"""The controls that an operator sends to a worker, and their results: names and JSON, no code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from baton_core.errors import ErrorCode
from baton_core.sessions.worker_info import Role

MAX_JSON_BYTES: Final = 65_536
"""Maximum size of an argument, and of a result."""
UPDATE_TIMEOUT_S: Final = 600.0
"""Time that a step of a weight update may take, unless its caller says otherwise."""
SLEEP_LEVELS: Final = (0, 1, 2)
"""Pause; give up the KV cache; give up the KV cache and the weights."""


class ControlAction(StrEnum):
    SLEEP = "sleep"
    WAKE_UP = "wake_up"
    IS_SLEEPING = "is_sleeping"
    RESET_PREFIX_CACHE = "reset_prefix_cache"
    START_PROFILE = "start_profile"
    STOP_PROFILE = "stop_profile"
    APPLY_MODEL = "apply_model"
    COLLECTIVE_RPC = "collective_rpc"
    SET_ROLE = "set_role"
    """Argument: role, is_fixed, force. Answered at once, as the next two, with what the worker has open."""
    DRAIN = "drain"
    """Take no new requests; those it has go on. Argument: force."""
    UNDRAIN = "undrain"
    START_WEIGHT_UPDATE = "start_weight_update"
    """Argument: is_checkpoint_format. The router does it, and the next two with `WORKER_ACTIONS`."""
    UPDATE_WEIGHTS = "update_weights"
    """Argument: path. Check a new version of the weights at every worker; the old one serves on."""
    FINISH_WEIGHT_UPDATE = "finish_weight_update"
    """Have every worker switch to the version that was checked."""
    CHECK_WEIGHTS = "check_weights"
    """Argument: path. Answered with the hash of the weights, while steps go on."""
    SWITCH_WEIGHTS = "switch_weights"
    """Argument: path, weights. Begins when the worker has no open work, and takes no new one until then."""
    SERVE_ADAPTER = "serve_adapter"
    """Argument: lora_name, lora_path, perhaps digest, lora_int_id and shown_name. Serve a LoRA adapter once
    it fits at every worker."""
    CHECK_ADAPTER = "check_adapter"
    """Argument: path, digest. Answered once the adapter was found to fit the model, while steps go on."""
    PIN_ADAPTERS = "pin_adapters"
    """Argument: numbers. Keep these LoRA adapters loaded, and no longer those that were pinned before."""


WORKER_ACTIONS: Final = frozenset({ControlAction.CHECK_WEIGHTS, ControlAction.SWITCH_WEIGHTS})
"""Actions that routers ask of workers, and operators do not ask of routers."""
BESIDE_STEPS: Final = frozenset({ControlAction.CHECK_WEIGHTS, ControlAction.CHECK_ADAPTER})
"""Actions that a worker does while it computes, one of each at a time."""


class EnginePart(StrEnum):
    """Parts that an engine that sleeps may lack."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    SCHEDULING = "scheduling"
    """It has everything, but computes nothing."""


ENGINE_MEMORY: Final = frozenset({EnginePart.WEIGHTS, EnginePart.KV_CACHE})
"""Parts without which an engine takes no request."""
AWAY_AT: Final = {0: frozenset({EnginePart.SCHEDULING}), 1: ENGINE_MEMORY, 2: ENGINE_MEMORY}
"""The engine parts that each level of sleep gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Router to worker. Answered by one `ControlResult`."""

    control_id: int
    """Id given by the router; no other control of its session has it."""
    action: ControlAction
    argument_json: str = "{}"
    """An object: the action's fields."""
    timeout_s: float
    """Time that it may wait at the worker before it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """Worker to router."""

    control_id: int
    result_json: str = "null"
    code: ErrorCode | None = None
    """Code of the error, if it could not be done."""
    message: str = ""
    is_asleep: bool = False
    """As `WorkerLoad` has it, and the four that follow: how the worker stands from here on."""
    role: Role | None = None
    is_role_fixed: bool = False
    is_draining: bool = False
    is_paused: bool = False
    weights: str = ""
