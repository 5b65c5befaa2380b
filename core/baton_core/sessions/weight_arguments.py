"""Arguments of the controls that replace the weights, and of vLLM's calls for that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from baton_core.errors import InvalidRequestError

FILES: Final = "files"
"""The only backend of weight transfer."""
_BY_FILES: Final = "neither NCCL nor IPC: new weights are safetensors files in a folder that all workers read"


class StartWeightUpdateArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The argument of `start_weight_update`."""

    is_checkpoint_format: bool = True


class CheckWeightsArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The argument of `update_weights` and of `check_weights`."""

    path: str


class SwitchWeightsArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The argument of `switch_weights`: a new version of the weights."""

    path: str
    """Folder of the weight files, as every worker sees it."""
    weights: str
    """Hash of the weights that it must hold."""


class FinishWeightUpdateArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The argument of `finish_weight_update`: no field."""


def require_checkpoint_format(is_checkpoint_format: bool) -> None:
    """Refuse weights in the layout of another engine's kernels.

    Raises:
        InvalidRequestError: names the format that is taken.
    """
    if not is_checkpoint_format:
        allowed = "True: weights come under the names and shapes of the model's checkpoint"
        raise InvalidRequestError("is_checkpoint_format", is_checkpoint_format, allowed)


def check_init_info(info: Mapping[str, Any]) -> None:
    """Refuse to set up any other way of the weights than by files.

    Raises:
        InvalidRequestError: `init_info` names another backend, or what one of those needs.
    """
    if info not in ({}, {"backend": FILES}):
        raise InvalidRequestError("init_info", _shown(info), f'{{}} or {{"backend": "{FILES}"}}: {_BY_FILES}')


def read_update_info(info: Mapping[str, Any]) -> str:
    """Return the folder of the new weights.

    Raises:
        InvalidRequestError: `update_info` is not of weights in files.
    """
    match dict(info):
        case {"path": str(path), **rest} if path and not rest:
            return path
    raise InvalidRequestError("update_info", _shown(info), f'{{"path": FOLDER}}: {_BY_FILES}')


def _shown(info: Mapping[str, Any]) -> str:
    return f"an object with {', '.join(sorted(info)) or 'no field'}"
