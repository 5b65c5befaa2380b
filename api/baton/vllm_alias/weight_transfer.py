"""Names of vLLM by which trainers send weights: requests, and functions of NCCL that refuse to be called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from baton_core.errors import InvalidConfigError


@dataclass
class WeightTransferConfig:
    """A configuration that changes nothing, as `weight_transfer_config` does."""

    backend: str = "nccl"


@dataclass
class WeightTransferInitRequest:
    """The argument of `LLM.init_weight_transfer_engine`."""

    init_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class WeightTransferUpdateRequest:
    """The argument of `LLM.update_weights`."""

    update_info: Mapping[str, Any] = field(default_factory=dict)


def trainer_init(*args: object, **options: object) -> NoReturn:
    """Refuse to connect a trainer.

    Raises:
        InvalidConfigError: always.
    """
    _refuse("trainer_init")


def packed_nccl_broadcast_producer(*args: object, **options: object) -> NoReturn:
    """Refuse to send weights.

    Raises:
        InvalidConfigError: always.
    """
    _refuse("packed_nccl_broadcast_producer")


def _refuse(name: str) -> NoReturn:
    raise InvalidConfigError(
        f"{name} is not supported: weights do not come over NCCL; LLM.update_weights takes tensors or a "
        "folder, and POST /update_weights a folder, as docs/operations.md says"
    )
