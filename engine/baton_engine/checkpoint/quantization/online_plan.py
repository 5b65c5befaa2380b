"""The layers of a model that are quantized while they are loaded. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, Final

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.quantization.methods import OnlineQuantization

HEAD: Final = "lm_head"
_HEAD_KINDS: Final = (OnlineQuantization.INT8, OnlineQuantization.INT4_WEIGHT_ONLY)
"""Kinds of Baton's own, which take the output head too; vLLM's leave it."""
_WEIGHT_KEYS: Final = {
    "fp8_per_tensor_static": OnlineQuantization.FP8_PER_TENSOR,
    "fp8_per_channel_static": OnlineQuantization.FP8_PER_CHANNEL,
    "fp8_per_block_static": OnlineQuantization.FP8_PER_BLOCK,
    "int8_per_channel_static": OnlineQuantization.INT8_WEIGHT_ONLY,
    "mxfp8": OnlineQuantization.MXFP8,
    "mxfp4": OnlineQuantization.MXFP4,
}
"""Names of the kinds as `weight` of a layer's specification."""
_KEYS: Final = ("linear", "moe", "ignore", "targets")
_REGEX: Final = "re:"
_EXPERTS: Final = ".experts."
"""Part of the names of all experts of mixtures but those that all tokens share."""
_MAX_NAME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlinePlan:
    """The kind of quantization of each layer."""

    linear: OnlineQuantization | None = None
    """The kind of dense layers; None leaves them as they are."""
    experts: OnlineQuantization | None = None
    """The kind of the experts of mixtures."""
    ignored: tuple[str, ...] = ()
    """Names of layers that stay as they are, with `*` for any text, or regular expressions after `re:`."""
    targets: tuple[tuple[str, OnlineQuantization], ...] = ()
    """Kinds by such names, in the place of `linear` and `experts`; the first that matches counts."""

    @classmethod
    def of(cls, kind: OnlineQuantization) -> OnlinePlan:
        """Return the plan of all layers in one kind."""
        return cls(linear=kind, experts=kind)

    def kind_of(self, layer: str) -> OnlineQuantization | None:
        """Return the kind of a layer; None leaves it as it is."""
        if any(_matches(layer, name) for name in self.ignored):
            return None
        kind = self.experts if _EXPERTS in layer else self.linear
        if self.targets:
            kind = next((kind for name, kind in self.targets if _matches(layer, name)), None)
        elif layer == HEAD and kind not in _HEAD_KINDS:
            return None
        return kind

    @property
    def name(self) -> str:
        """A text that is the same for the same plan alone: the kind's, where all layers have one."""
        if self.linear is not None and self == OnlinePlan.of(self.linear):
            return self.linear.value
        whole = json.dumps((self.linear, self.experts, self.ignored, self.targets))
        return whole if len(whole) <= _MAX_NAME else blake2b(whole.encode(), digest_size=16).hexdigest()


def read_online_plan(kind: str | None, config: Mapping[str, Any] | None) -> OnlinePlan:
    """Return the plan of the settings `quantization` and `quantization_config`; the latter comes first.

    Raises:
        InvalidConfigError: naming the key, its value and what is allowed.
    """
    plan = OnlinePlan() if kind is None else OnlinePlan.of(OnlineQuantization(kind))
    config = config or {}
    for key, value in config.items():
        if key not in _KEYS:
            raise _refused(key, value, f"the keys {', '.join(_KEYS)}")
    linear = _read_kind("linear", config.get("linear"), plan.linear)
    experts = _read_kind("moe", config.get("moe"), plan.experts)
    targets = _read_targets(config)
    if targets and (config.get("linear") or config.get("moe")):
        raise _refused("targets", config["targets"], "None, beside linear or moe")
    ignored = config.get("ignore") or ()
    if not isinstance(ignored, list | tuple) or not all(isinstance(name, str) for name in ignored):
        raise _refused("ignore", ignored, "a list of names of layers")
    for name in ignored:
        _check_name("ignore", name)
    return OnlinePlan(linear=linear, experts=experts, ignored=tuple(ignored), targets=targets)


def _read_kind(key: str, value: Any, default: OnlineQuantization | None) -> OnlineQuantization | None:
    """Read a kind by its name, or a mapping whose `weight` names it; its activations are then its own."""
    if value is None:
        return default
    name = value
    if isinstance(value, Mapping):
        if value.get("activation") is not None or value.keys() - {"weight", "activation"}:
            raise _refused(key, value, "weight, and activation None: a kind rounds activations its own way")
        name = value.get("weight")
        if name is None:
            return None
    kinds = {**{kind.value: kind for kind in OnlineQuantization}, **_WEIGHT_KEYS}
    if not isinstance(name, str) or name not in kinds:
        raise _refused(key, value, ", ".join(kinds))
    return kinds[name]


def _read_targets(config: Mapping[str, Any]) -> tuple[tuple[str, OnlineQuantization], ...]:
    targets = config.get("targets") or {}
    if not isinstance(targets, Mapping) or not all(isinstance(name, str) for name in targets):
        raise _refused("targets", targets, "kinds by names of layers")
    read = []
    for name, value in targets.items():
        _check_name("targets", name)
        kind = _read_kind("targets", value, None)
        if kind is None:
            raise _refused("targets", value, ", ".join(OnlineQuantization))
        read.append((name, kind))
    return tuple(read)


def _check_name(key: str, name: str) -> None:
    try:
        _matches("", name)
    except (re.error, RecursionError, OverflowError):
        raise _refused(key, name, "names, or regular expressions after re:") from None


def _matches(layer: str, name: str) -> bool:
    if name.startswith(_REGEX):
        return re.match(name.removeprefix(_REGEX), layer) is not None
    return fnmatchcase(layer, name)


def _refused(key: str, value: object, allowed: str) -> InvalidConfigError:
    return InvalidConfigError(f"quantization_config has {key}: {value!r:.200}; allowed: {allowed}")
