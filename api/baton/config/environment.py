"""Variables of the environment that vLLM documents: those that are read, and how the others are named.

`VLLM_API_KEY` is read beside `BATON_API_KEY`, `VLLM_CACHE_ROOT` by the build of the CPU kernels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from baton.config.flags import Flag, shown
from baton_core.errors import InvalidConfigError
from baton_core.requests.sampling_params import MAX_N
from baton_service.process import API_KEY_VARIABLE

ENVIRONMENT: Final[Mapping[str, str]] = os.environ
KEY_VARIABLES: Final = (API_KEY_VARIABLE, "VLLM_API_KEY")
"""Variables with a router's key, the one that comes first."""
MAX_N_VARIABLE: Final = "VLLM_MAX_N_SEQUENCES"
CPU_KV_CACHE_VARIABLE: Final = "VLLM_CPU_KVCACHE_SPACE"
"""GiB of the KV cache of a worker on a CPU."""
_LEVELS: Final = {"warn": "warning", "critical": "error", "fatal": "error"}
_SWITCHES: Final = {"1": True, "true": True, "0": False, "false": False, "": False}
_STANDS_FOR: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "VLLM_LOGGING_LEVEL": ("--log-level", lambda text: _LEVELS.get(text.lower(), text.lower())),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": ("--idle-timeout", str),
    MAX_N_VARIABLE: ("--max-n-sequences", str),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": ("--enable-lora-updates", str.lower),
    "VLLM_SERVER_DEV_MODE": ("--enable-operator-routes", str.lower),
    "VLLM_TORCH_PROFILER_DIR": ("--profiler-config", lambda text: json.dumps({"torch_profiler_dir": text})),
    "VLLM_CPU_OMP_THREADS_BIND": ("--cpu-bind", lambda text: "none" if text == "nobind" else text),
}
"""The flag that each stands in for where it is left out, and its value as the flag writes it."""
_READ_ELSEWHERE: Final = frozenset({"VLLM_API_KEY", "VLLM_CACHE_ROOT", CPU_KV_CACHE_VARIABLE, "VLLM_PLUGINS"})
_NEEDLESS: Final = frozenset({"VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_ENABLE_V1_MULTIPROCESSING"})
"""Variables that turn off things which are not there."""
_INSTEAD: Final[Mapping[str, str]] = {
    "VLLM_PORT": "--port and --grpc-port",
    "VLLM_HOST_IP": "--advertise-host",
    "VLLM_LOGGING_CONFIG_PATH": "--log-format and --log-level",
    "VLLM_CONFIGURE_LOGGING": "--log-format and --log-level",
    "VLLM_LOGGING_PREFIX": "--log-format",
    "VLLM_USE_MODELSCOPE": "a folder, or HF_ENDPOINT for a mirror of the Hub",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": '--hf-overrides with {"max_position_embeddings": N}',
    "VLLM_RAY_DP_PACK_STRATEGY": "--prefill-workers and --decode-workers",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "--peer-address",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "--peer-address",
    "VLLM_TARGET_DEVICE": "--device",
}
"""Variables that are not read, and what sets the same."""


def environment_defaults(
    flags: Iterable[Flag], environment: Mapping[str, str] = ENVIRONMENT
) -> dict[str, Any]:
    """Return values by the fields of those flags that a variable stands in for.

    Raises:
        InvalidConfigError: naming variable, value and what is allowed.
    """
    by_name = {flag.name: flag for flag in flags}
    values: dict[str, Any] = {}
    for variable, (name, spelled) in _STANDS_FOR.items():
        if variable in environment and name in by_name:
            flag = by_name[name]
            values[flag.field] = _read(variable, environment[variable], flag, spelled)
    return values


def cpu_kv_cache_bytes(environment: Mapping[str, str] = ENVIRONMENT) -> int | None:
    """Return the size of a CPU worker's KV cache that the environment gives; None: it gives none.

    Raises:
        InvalidConfigError: naming variable, value and what is allowed.
    """
    text = environment.get(CPU_KV_CACHE_VARIABLE, "")
    if text in ("", "0"):
        return None
    try:
        num_bytes = int(float(text) * 2**30)
    except (ValueError, OverflowError):
        num_bytes = 0
    if not 1 <= num_bytes <= 2**50:
        raise InvalidConfigError(f"{CPU_KV_CACHE_VARIABLE} is {shown(text)}; allowed: GiB over 0")
    return num_bytes


def max_n_sequences(environment: Mapping[str, str] = ENVIRONMENT) -> int:
    """Return the most sequences that a prompt may have in Python; `MAX_N` where the environment has none.

    Raises:
        InvalidConfigError: naming variable, value and what is allowed.
    """
    text = environment.get(MAX_N_VARIABLE, str(MAX_N))
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MAX_N):
        raise InvalidConfigError(f"{MAX_N_VARIABLE} is {shown(text)}; allowed: an integer from 1 to {MAX_N}")
    return int(text)


def unread_variables(environment: Mapping[str, str] = ENVIRONMENT) -> list[str]:
    """Return the variables that are set and not read: vLLM's, with what sets the same, and empty keys."""
    read = _STANDS_FOR.keys() | _READ_ELSEWHERE | _NEEDLESS
    names = sorted(name for name in environment if name.startswith("VLLM_") and name not in read)
    empty = [name for name in KEY_VARIABLES if name in environment and not environment[name].strip()]
    return [
        *(f"{name} (empty: it is no key)" for name in empty),
        *(f"{name} (instead: {_INSTEAD[name]})" if name in _INSTEAD else name for name in names),
    ]


def _read(variable: str, text: str, flag: Flag, spelled: Callable[[str], str]) -> Any:
    if flag.kind is bool:
        if text.lower() not in _SWITCHES:
            raise InvalidConfigError(f"{variable} is {shown(text)}; allowed: 1 or 0")
        return _SWITCHES[text.lower()]
    if text == "auto":
        return flag.default
    try:
        return flag.parse(spelled(text))
    except InvalidConfigError:
        raise InvalidConfigError(f"{variable} is {shown(text)}; allowed: {flag.allowed}") from None
