"""Arguments of the controls that replace the weights, as router and worker both read them."""

from __future__ import annotations

import msgspec

from baton_core.errors import InvalidRequestError


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
