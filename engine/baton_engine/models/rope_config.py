"""Fields of config.json for rotary position embeddings.

Both spellings of Transformers are read: `rope_parameters`, and the older `rope_theta` with `rope_scaling`.

The frequencies of `dynamic` and `longrope` depend on a sequence's length. A cached key cannot change when its
sequence grows, nor depend on who shares its step, so a loaded model has one set of them: that which
Transformers uses for a sequence of `RopeReader.served_len` tokens, however few the KV cache may hold.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Final

from baton_core.model.config_overrides import has_sections
from baton_engine.checkpoint.config_fields import MAX_INTEGER, ConfigFields

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Linear scaling: frequencies divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a blend between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Frequencies of few turns over the original context divided by `factor`, those of many turns kept."""

    factor: float
    beta_fast: float
    """Turns from which on a frequency is kept."""
    beta_slow: float
    """Turns up to which it is divided."""
    original_len: int
    rounds_ramp: bool
    """True if the ramp begins and ends at whole dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """Each frequency divided by a factor of its own."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One rotary embedding."""

    rotary_dim: int
    """Leading dimensions of a head that are rotated."""
    theta: float
    scaling: RopeScaling | None = None
    magnitude: float = 1.0
    """Factor of cosine and sine."""


_TYPES: Final = {
    **{name: name for name in ("default", "linear", "dynamic", "yarn", "longrope", "llama3")},
    "su": "longrope",
}
"""The allowed names under `rope_type`, with the type of each."""
_NONE: Final = ConfigFields("", {})
_GTE_TYPES: Final = {**_TYPES, "ntk": "ntk"}
_PHI3_TYPES: Final = {"default": "default", **dict.fromkeys(("longrope", "su", "yarn"), "longrope")}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeReader:
    """Reads the rotary embeddings of one model."""

    fields: ConfigFields
    head_dim: int
    max_model_len: int | None = None
    """Longest sequence that the operator asks for; None: the longest that the model was trained for."""
    default_theta: float = 10_000.0
    is_partial_allowed: bool = False
    """True if the family rotates a part of each head where `partial_rotary_factor` says so."""
    is_phi3: bool = False
    """True if `longrope` is the only scaling, and `yarn` an old name of it."""
    is_gte: bool = False
    """True if the family has the scaling `ntk`, too."""
    is_by_layer_type: bool = False
    """True if the family has an embedding for each type of layer; its trained length is after scaling."""

    @property
    def trained_len(self) -> int:
        return self.fields.integer("max_position_embeddings")

    @property
    def served_len(self) -> int:
        """Longest sequence that the frequencies are made for: beyond the trained length only if dynamic."""
        rope = self._section()
        factor = rope.number("factor") if self._read_type(rope) == "dynamic" else 1.0
        return min(self.max_model_len or self.trained_len, int(self.trained_len * max(factor, 1.0)))

    @property
    def longest_len(self) -> int:
        """Longest sequence that the model can have: `linear` and `yarn` lengthen it, as in vLLM."""
        if self.is_by_layer_type:
            return self.trained_len
        rope = self._section()
        match self._read_type(rope):
            case "linear":
                return scaled_len(self.trained_len, rope.number("factor"), self.trained_len)
            case "yarn":
                original_len = self._read_original_len(rope)
                return scaled_len(original_len, self._read_yarn_factor(rope, original_len), self.trained_len)
            case _:
                return max(self.trained_len, self.served_len)

    def read(self) -> RopeConfig:
        """Read the embedding of a model that has one for all layers.

        Raises:
            InvalidModelError: a value is missing, wrong, or not implemented.
        """
        section = self._section()
        if has_sections(section.values()):
            raise self.fields.refuse("rope_parameters", dict(section.values()), "one section for all layers")
        return self.read_section(section, self.fields.number("rope_theta", self.default_theta))

    def read_section(self, rope: ConfigFields, theta: float) -> RopeConfig:
        """Read one embedding from its section of the configuration; `theta` holds where that is silent.

        Raises:
            InvalidModelError: as `read`.
        """
        theta = rope.number("rope_theta", theta)
        rotary_dim = self._read_rotary_dim(rope)
        scaling: RopeScaling | None = None
        magnitude = 1.0
        match self._read_type(rope):
            case "linear":
                scaling = LinearScaling(factor=rope.number("factor"))
            case "dynamic":
                theta = self._dynamic_theta(rope, theta, rotary_dim)
            case "ntk":
                theta, scaling = _read_ntk(rope, theta, rotary_dim)
            case "yarn":
                scaling, magnitude = self._read_yarn(rope, theta)
            case "longrope":
                scaling, magnitude = self._read_longrope(rope, rotary_dim)
            case "llama3":
                scaling = self._read_llama3(rope)
        return RopeConfig(rotary_dim=rotary_dim, theta=theta, scaling=scaling, magnitude=magnitude)

    def layer_section(self, layer_type: str, *, is_scaled: bool = True) -> ConfigFields:
        """Return the section of one type of layer; `rope_scaling` comes before it where that is scaled."""
        sections = self.fields.section("rope_parameters") or _NONE
        own = sections.section(layer_type) or _NONE
        scaling = self.fields.section("rope_scaling") if is_scaled else None
        return own if scaling is None else scaling.updated({**own.values(), **scaling.values()})

    def _section(self) -> ConfigFields:
        return self.fields.section("rope_scaling") or self.fields.section("rope_parameters") or _NONE

    def _read_type(self, rope: ConfigFields) -> str:
        key = "rope_type" if rope.raw("rope_type") is not None else "type"
        types = _PHI3_TYPES if self.is_phi3 else _GTE_TYPES if self.is_gte else _TYPES
        return types[rope.choice(key, tuple(types), "default")]

    def _read_rotary_dim(self, rope: ConfigFields) -> int:
        holder = rope if rope.raw("partial_rotary_factor") is not None else self.fields
        share = holder.number("partial_rotary_factor", 1.0)
        if share != 1.0 and not self.is_partial_allowed:
            raise holder.refuse("partial_rotary_factor", share, "1.0")
        rotary_dim = int(self.head_dim * share)
        if share > 1 or rotary_dim < 2 or rotary_dim % 2:
            allowed = f"at most 1, and such that an even number of the {self.head_dim} dimensions is rotated"
            raise holder.refuse("partial_rotary_factor", share, allowed)
        return rotary_dim

    def _dynamic_theta(self, rope: ConfigFields, theta: float, rotary_dim: int) -> float:
        """The base grows with the sequence beyond the trained length.

        Source: NTK-aware scaling, dynamic form (u/bloc97, u/emozilla), as in Transformers.
        """
        factor = rope.number("factor")
        if self.served_len <= self.trained_len or rotary_dim == 2:
            return theta
        growth = factor * self.served_len / self.trained_len - (factor - 1)
        return theta * math.pow(growth, rotary_dim / (rotary_dim - 2))

    def _read_yarn(self, rope: ConfigFields, theta: float) -> tuple[YarnScaling, float]:
        if theta <= 1:
            raise rope.refuse("rope_theta", theta, "a number above 1")
        original_len = self._read_original_len(rope)
        factor = self._read_yarn_factor(rope, original_len)
        beta_fast, beta_slow = _given(rope, "beta_fast") or 32.0, _given(rope, "beta_slow") or 1.0
        if beta_fast < beta_slow:
            raise rope.refuse("beta_fast", beta_fast, f"at least beta_slow ({beta_slow})")
        magnitude = rope.optional_number("attention_factor")
        scaling = YarnScaling(
            factor=factor,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            original_len=original_len,
            rounds_ramp=rope.boolean("truncate", True),
        )
        return scaling, _yarn_magnitude(rope, factor) if magnitude is None else magnitude

    def _read_yarn_factor(self, rope: ConfigFields, original_len: int) -> float:
        return rope.number("factor", self.trained_len / original_len)

    def _read_longrope(self, rope: ConfigFields, rotary_dim: int) -> tuple[LongRopeScaling, float]:
        original_len = self._read_original_len(rope)
        factors = {name: rope.numbers(f"{name}_factor", rotary_dim // 2) for name in ("short", "long")}
        chosen = "long" if self.served_len > original_len else "short"
        logger.info("rope %s factors, for sequences of up to %d tokens", chosen, self.served_len)
        factor = rope.number("factor", self.trained_len / original_len)
        magnitude = rope.optional_number("attention_factor")
        if magnitude is None and factor > 1:
            if original_len == 1:
                raise rope.refuse(
                    "original_max_position_embeddings", 1, "at least 2 without attention_factor"
                )
            magnitude = math.sqrt(1 + math.log(factor) / math.log(original_len))
        return LongRopeScaling(factors=factors[chosen]), 1.0 if magnitude is None else magnitude

    def _read_llama3(self, rope: ConfigFields) -> Llama3Scaling:
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise rope.refuse("high_freq_factor", high, f"a number above low_freq_factor ({low})")
        return Llama3Scaling(
            factor=rope.number("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_len=self._read_original_len(rope),
        )

    def _read_original_len(self, rope: ConfigFields) -> int:
        """Read the length before scaling: the key beside the section comes before the one in it."""
        inner = rope.integer("original_max_position_embeddings", self.trained_len)
        return self.fields.integer("original_max_position_embeddings", inner)


def scaled_len(unscaled_len: int, factor: float, trained_len: int) -> int:
    """Return the length that a scaling by a factor reaches, which is never below the trained one."""
    return min(max(trained_len, int(unscaled_len * factor)), MAX_INTEGER)


def _read_ntk(rope: ConfigFields, theta: float, rotary_dim: int) -> tuple[float, LinearScaling]:
    """Read a base that is `factor` times as large, whose frequencies are slower by a step of the factor.

    Source: NTK-aware scaling, fixed form, as in vLLM (`NTKScalingRotaryEmbedding` without `mixed_b`).
    """
    if (mixed_b := rope.raw("mixed_b")) is not None:
        raise rope.refuse("mixed_b", mixed_b, "null")
    factor = rope.number("factor")
    return theta * factor, LinearScaling(factor=math.pow(factor, 2 / rotary_dim))


def _yarn_magnitude(rope: ConfigFields, factor: float) -> float:
    """Source: YaRN (arXiv 2309.00071), equation 22; `mscale` as in DeepSeek-V2."""
    mscale, mscale_all_dim = _given(rope, "mscale"), _given(rope, "mscale_all_dim")
    if factor <= 1:
        return 1.0
    if mscale is None or mscale_all_dim is None:
        return 0.1 * math.log(factor) + 1.0
    return (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * mscale_all_dim * math.log(factor) + 1.0)


def _given(rope: ConfigFields, key: str) -> float | None:
    """Read a number of YaRN; 0 is none, as for Transformers."""
    return rope.optional_number(key) if rope.raw(key) else None
