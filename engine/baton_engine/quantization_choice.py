"""The quantization with which a model is loaded: that of its checkpoint, or one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from baton_engine.checkpoint.quantization.gguf import read_gguf_quantization
from baton_engine.checkpoint.quantization.layer_format import CheckpointQuantization
from baton_engine.checkpoint.quantization.methods import ALIASES, OnlineQuantization
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan, read_online_plan
from baton_engine.models.registry import why_not_native


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenQuantization:
    """At most one of both is there."""

    checkpoint: CheckpointQuantization | None = None
    online: OnlinePlan | None = None
    int4_w4a8: bool = False
    """Layers of 4-bit integers of the checkpoint round their inputs to int8."""

    @property
    def name(self) -> str:
        """The text by which workers compare it, beside the checkpoint; empty where that decides all."""
        if self.online is not None:
            return self.online.name
        return "int4_w4a8" if self.int4_w4a8 else ""

    @property
    def of_weights(self) -> dict[str, Any]:
        """The arguments that a reader of the weights takes."""
        return {"quantization": self.checkpoint, "online": self.online, "int4_w4a8": self.int4_w4a8}


def choose_quantization(
    asked: str | None,
    asked_config: Mapping[str, Any] | None,
    fields: ConfigFields,
    folder: Path,
    config: ModelConfig,
    *,
    int4_w4a8: bool = False,
    gguf: Path | None = None,
) -> ChosenQuantization:
    """Read how a checkpoint is quantized, and check that this is what was asked for.

    With a `gguf` file the weights are those of it.

    Raises:
        InvalidModelError: the checkpoint is quantized in a way that cannot be read.
        InvalidConfigError: what was asked for contradicts the checkpoint, or cannot be had with this model.
    """
    checkpoint = read_quantization(fields, folder) if gguf is None else read_gguf_quantization(gguf, fields)
    if checkpoint is not None:
        if asked is not None and ALIASES.get(asked, asked) != checkpoint.method:
            allowed = f"{checkpoint.method}, as its files say, or None"
            raise InvalidConfigError(f"quantization is {asked!r}; allowed with this checkpoint: {allowed}")
        if asked_config:
            text = f"quantization_config is {dict(asked_config)!r:.200}"
            raise InvalidConfigError(f"{text}; allowed with a checkpoint that is stored quantized: None")
        _require_native(f"a checkpoint quantized by {checkpoint.method}", config)
        return ChosenQuantization(checkpoint=checkpoint, int4_w4a8=int4_w4a8)
    if int4_w4a8:
        raise InvalidConfigError("int4_w4a8 is True; allowed with weights not stored quantized: False")
    if asked is None and not asked_config:
        return ChosenQuantization()
    kinds = [kind.value for kind in OnlineQuantization]
    if asked is not None and asked not in kinds:
        allowed = f"None, or one of {', '.join(kinds)}, since its weights are not stored quantized"
        raise InvalidConfigError(f"quantization is {asked!r}; allowed with this checkpoint: {allowed}")
    _require_native(f"quantization {asked!r}", config)
    return ChosenQuantization(online=read_online_plan(asked, asked_config))


def _require_native(what: str, config: ModelConfig) -> None:
    if where := why_not_native(config):
        raise InvalidConfigError(f"{what} is not there for {where}; allowed: a model of native code")
