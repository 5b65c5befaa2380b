"""Functions of vLLM by which a trainer sends weights over NCCL: trainers import them, and may call none."""

from __future__ import annotations

from typing import NoReturn

from baton_core.errors import InvalidConfigError


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
