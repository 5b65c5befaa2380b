"""The configuration of an EAGLE or EAGLE-3 head, as published beside its weights or by `speculators`.

Sources: SafeAILab/EAGLE (cnets.py), vLLM's llama_eagle.py and llama_eagle3.py, speculators 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidModelError
from baton_core.worker.speculative_config import SpeculativeMethod
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.model_fields import read_model_fields
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.decoder_reading import read_decoder_config

_LAYER_FAMILIES: Final[Mapping[str, str]] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The decoder whose layer a head's is built like, by `model_type`."""
_SPECULATORS: Final = "speculators_model_type"
_TAPPED: Final = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    """A head of one decoder layer that reads hidden states of another model."""

    method: SpeculativeMethod
    layer: DecoderConfig
    """Configuration of the head's layer, norms, vocabulary and positions."""
    tapped: tuple[int, ...] | None
    """Layers of the target whose inputs the head reads side by side; None: its final hidden states."""
    target_hidden_size: int
    draft_vocab_size: int
    """Tokens that the head can draft."""
    has_fc_bias: bool = False
    is_normed_before_residual: bool = False
    """True if the residual sum begins with normed hidden states."""
    is_normed_before_fc: bool = False
    """True if the target's hidden states are normed side by side."""
    has_fc_norms: bool = False
    """True if those of each tapped layer are normed."""
    is_output_normed: bool = False
    """True if the next token's input is the normed output."""

    def num_shared_values(self, *, has_embedding: bool) -> int:
        """Return the size of the embedding and output head that it shares with its target, in numbers.

        `has_embedding` is true if the head has embeddings of its own.
        """
        num_tables = (not has_embedding) + (self.method is SpeculativeMethod.EAGLE)
        return num_tables * self.layer.vocab_size * self.target_hidden_size


def find_eagle(folder: Path, method: SpeculativeMethod) -> SpeculativeMethod | None:
    """Return which head a folder holds for a method that was asked for; None where it holds a whole model.

    Raises:
        InvalidModelError: the folder is no head of that method.
    """
    fields = read_model_fields(folder)
    found = _published_as(fields)
    if found is None:
        return None if method is SpeculativeMethod.DRAFT_MODEL else method
    if method not in (SpeculativeMethod.DRAFT_MODEL, found):
        raise fields.refuse("architectures", fields.raw("architectures"), f"those of a head for {method}")
    return found


def read_eagle_config(folder: Path, method: SpeculativeMethod, num_target_layers: int) -> EagleConfig:
    """Read and check a head's config.json.

    Raises:
        InvalidModelError: a key is missing, or asks for what a head cannot have here.
    """
    fields = read_model_fields(folder)
    for nested in ("transformer_layer_config", "model"):
        if (section := fields.section(nested)) is not None:
            fields = section.updated({**fields.values(), **_own_of_layer(section, fields)})
    is_third = method is SpeculativeMethod.EAGLE3
    kind = fields.choice("model_type", tuple(_LAYER_FAMILIES), "llama")
    num_layers = fields.integer("num_hidden_layers", 1)
    if num_layers != 1:
        raise fields.refuse("num_hidden_layers", num_layers, "1 in a head that drafts")
    layer = read_decoder_config(folder, fields.updated({"architectures": [_LAYER_FAMILIES[kind]]}), None)
    own = fields.section("eagle_config") or ConfigFields(str(folder / "config.json"), {})
    if own.raw("use_aux_hidden_state") is False:
        raise own.refuse("use_aux_hidden_state", False, "true")
    return EagleConfig(
        method=method,
        layer=layer,
        tapped=_read_tapped(fields, own, num_target_layers) if is_third else None,
        target_hidden_size=fields.integer("target_hidden_size", layer.hidden_size),
        draft_vocab_size=fields.integer("draft_vocab_size", layer.vocab_size, maximum=layer.vocab_size),
        has_fc_bias=not is_third and fields.boolean("bias", False),
        is_normed_before_residual=fields.boolean("norm_before_residual", False),
        is_normed_before_fc=own.boolean("norm_before_fc", fields.boolean("norm_before_fc", False)),
        has_fc_norms=fields.boolean("fc_norm", False),
        is_output_normed=fields.boolean("norm_output", False),
    )


def _published_as(fields: ConfigFields) -> SpeculativeMethod | None:
    speculators = fields.raw(_SPECULATORS)
    if speculators is not None:
        return SpeculativeMethod(fields.choice(_SPECULATORS, ("eagle3",), "eagle3"))
    names = fields.raw("architectures")
    text = str(names).lower()
    if "eagle3" in text:
        return SpeculativeMethod.EAGLE3
    return SpeculativeMethod.EAGLE if "eagle" in text or fields.raw("model_type") == "eagle" else None


def _own_of_layer(section: ConfigFields, fields: ConfigFields) -> dict[str, Any]:
    """Return what a layer's section says of names that the whole has for itself, too."""
    own = {name: section.raw(name) for name in ("model_type", "architectures") if section.raw(name)}
    return own if own else {"model_type": fields.raw("model_type")}


def _read_tapped(fields: ConfigFields, own: ConfigFields, num_layers: int) -> tuple[int, ...]:
    """Return the tapped layers; by default one near the beginning, the middle and the end."""
    told = own.raw(_TAPPED) if own.raw(_TAPPED) is not None else fields.raw(_TAPPED)
    if told is None:
        return 2, num_layers // 2, num_layers - 3
    is_list = isinstance(told, list) and 1 <= len(told) <= num_layers
    if not is_list or any(type(one) is not int or not 0 <= one < num_layers for one in told):
        raise fields.refuse(_TAPPED, told, f"a list of layers of the target, 0 to {num_layers - 1}")
    return tuple(told)


def require_fitting(config: EagleConfig, target: DecoderConfig, folder: Path) -> None:
    """Refuse a head of another model.

    Raises:
        InvalidModelError: naming the key, its value and the target's.
    """
    wanted = {"target_hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
    told = {"target_hidden_size": config.target_hidden_size, "vocab_size": config.layer.vocab_size}
    if config.method is SpeculativeMethod.EAGLE:
        wanted["hidden_size"], told["hidden_size"] = target.hidden_size, config.layer.hidden_size
    for name, value in told.items():
        if value != wanted[name]:
            where = folder / "config.json"
            raise InvalidModelError(f"{where}: {name} is {value}; allowed: {wanted[name]}, the target's")
    if config.tapped is not None and not all(0 <= one < len(target.layers) for one in config.tapped):
        raise InvalidModelError(
            f"{folder / 'config.json'}: {_TAPPED} is {list(config.tapped)}; "
            f"allowed: layers of a target of {len(target.layers)}"
        )
