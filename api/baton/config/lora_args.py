"""Arguments of LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from baton.config.engine_arg_fields import Part, arg
from baton.config.flags import Range
from baton_core.errors import InvalidConfigError
from baton_engine.adapters.adapter_settings import AdapterSettings

MAX_RANK: Final = 512
_MAX_ADAPTERS: Final = 65_536


@dataclass(kw_only=True)
class LoRAArgs:
    """The part of `EngineArgs` on adapters."""

    enable_lora: bool = arg(bool, False, "take LoRA adapters in PEFT's format", part=Part.BOTH)
    max_loras: int = arg(int, 1, "different adapters that run at once", Range(1, _MAX_ADAPTERS))
    max_lora_rank: int = arg(int, 16, "highest rank of an adapter", Range(1, MAX_RANK), Part.BOTH)
    max_cpu_loras: int | None = arg(
        int,
        None,
        "adapters that each worker keeps loaded, the last used ones; default: max_loras",
        Range(1, _MAX_ADAPTERS),
    )


def check_lora_args(args: Any) -> None:
    """Refuse arguments of adapters that do not go together.

    Raises:
        InvalidConfigError: naming the field, its value and what is allowed.
    """
    if args.max_cpu_loras is not None and args.max_cpu_loras < args.max_loras:
        text = f"max_cpu_loras is {args.max_cpu_loras}"
        raise InvalidConfigError(f"{text}; allowed: at least {args.max_loras}, the max_loras")


def adapter_settings(args: Any) -> AdapterSettings | None:
    """Return the engine's limits of adapters; None where it takes none."""
    if not args.enable_lora:
        return None
    return AdapterSettings(max_rank=args.max_lora_rank, max_cpu_loras=args.max_cpu_loras or args.max_loras)
