"""`vllm.envs`: variables that vLLM documents, read from the environment when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VARIABLES: Final[dict[str, tuple[Any, Callable[[str], Any]]]] = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": (False, lambda text: text.strip().lower() in ("1", "true")),
    "VLLM_API_KEY": (None, str),
    "VLLM_CACHE_ROOT": (str(Path("~/.cache/vllm").expanduser()), str),
    "VLLM_CPU_KVCACHE_SPACE": (None, int),
    "VLLM_CPU_OMP_THREADS_BIND": ("auto", str),
    "VLLM_ENABLE_V1_MULTIPROCESSING": (True, lambda text: bool(int(text))),
    "VLLM_HOST_IP": ("", str),
    "VLLM_LOGGING_LEVEL": ("INFO", str),
    "VLLM_MAX_N_SEQUENCES": (16384, int),
    "VLLM_NO_USAGE_STATS": (False, lambda text: text == "1"),
    "VLLM_PLUGINS": (None, lambda text: text.split(",")),
    "VLLM_PORT": (None, int),
    "VLLM_RAY_DP_PACK_STRATEGY": ("strict", str),
    "VLLM_SERVER_DEV_MODE": (False, lambda text: bool(int(text))),
    "VLLM_USE_MODELSCOPE": (False, lambda text: text.lower() == "true"),
    "VLLM_USE_V1": (True, lambda text: bool(int(text))),
    "VLLM_WORKER_MULTIPROC_METHOD": ("fork", str),
}
"""Default of each, and how its text is read."""


def __getattr__(name: str) -> Any:
    if name not in VARIABLES:
        raise AttributeError(f"vllm.envs has no {name!r} in Baton; allowed: {', '.join(VARIABLES)}")
    default, read = VARIABLES[name]
    text = os.environ.get(name)
    return default if text is None else read(text)
