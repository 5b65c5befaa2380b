"""Fields of config.json for a mixture of experts: Mixtral, Qwen2-MoE, Qwen3-MoE and GPT-OSS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from baton_engine.checkpoint.config_fields import ConfigFields


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureNames:
    """Names of a mixture's tensors in a checkpoint."""

    block: str
    """Between a layer's prefix and the names of router and experts."""
    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedSwiGLU:
    """GPT-OSS's gate: `gate * sigmoid(alpha * gate) * (up + 1)`.

    Gate is at most `limit`, up within `-limit` and `limit`.
    """

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig:
    """The experts of a model; all sparse layers have the same."""

    names: MixtureNames
    other_names: MixtureNames | None = None
    """Names that a checkpoint may have instead: those of Transformers' modules, with which packages save."""
    layers: frozenset[int]
    """The layers that have experts instead of one dense feed-forward network."""
    hidden_size: int
    intermediate_size: int
    """Intermediate size of one expert."""
    num_experts: int
    num_experts_per_token: int
    is_normalized: bool
    """True if a token's weights add up to 1 over its own experts, instead of over all experts."""
    shared_intermediate_size: int | None = None
    """Intermediate size of the shared expert; None without one."""
    has_bias: bool = False
    """True if the router has a bias."""
    swiglu: ClampedSwiGLU | None = None
    """The gated activation of fused experts, which have biases; None is `silu(gate) * up`, without biases, of
    experts that are stored one by one.
    """


_MIXTRAL: Final = MixtureNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")
_QWEN: Final = MixtureNames(block="mlp")
_GPT_OSS: Final = MixtureNames(block="mlp", router="router")
MIXTURE_ARCHITECTURES: Final = (
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "GptOssForCausalLM",
)


def read_mixture_config(architecture: str, fields: ConfigFields, num_layers: int) -> MixtureConfig | None:
    """Return the experts that config.json describes; None for an architecture without experts.

    Raises:
        InvalidModelError: a key is missing or wrong, or a token is to have more experts than there are.
    """
    if architecture not in MIXTURE_ARCHITECTURES:
        return None
    is_gpt_oss, is_mixtral = architecture == "GptOssForCausalLM", architecture == "MixtralForCausalLM"
    is_qwen = not (is_gpt_oss or is_mixtral)
    has_shared_expert = architecture == "Qwen2MoeForCausalLM"
    return MixtureConfig(
        names=_GPT_OSS if is_gpt_oss else _MIXTRAL if is_mixtral else _QWEN,
        other_names=_QWEN if is_mixtral else None,
        layers=_read_sparse_layers(fields, num_layers) if is_qwen else frozenset(range(num_layers)),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("moe_intermediate_size" if is_qwen else "intermediate_size"),
        num_experts=(num_experts := _read_num_experts(fields)),
        num_experts_per_token=_read_num_experts_per_token(fields, num_experts),
        is_normalized=not is_qwen or fields.boolean("norm_topk_prob", False),
        shared_intermediate_size=(
            fields.integer("shared_expert_intermediate_size") if has_shared_expert else None
        ),
        has_bias=is_gpt_oss,
        swiglu=_read_swiglu(fields) if is_gpt_oss else None,
    )


def _read_swiglu(fields: ConfigFields) -> ClampedSwiGLU:
    return ClampedSwiGLU(alpha=fields.number("swiglu_alpha", 1.702), limit=fields.number("swiglu_limit", 7.0))


def _read_num_experts(fields: ConfigFields) -> int:
    key = "num_local_experts" if fields.raw("num_local_experts") is not None else "num_experts"
    return fields.integer(key)


def _read_num_experts_per_token(fields: ConfigFields, num_experts: int) -> int:
    value = fields.integer("num_experts_per_tok")
    if value > num_experts:
        raise fields.refuse("num_experts_per_tok", value, f"at most the number of experts ({num_experts})")
    return value


def _read_sparse_layers(fields: ConfigFields, num_layers: int) -> frozenset[int]:
    dense: Any = fields.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise fields.refuse("mlp_only_layers", dense, "a list of layer numbers")
    step = fields.integer("decoder_sparse_step", 1)
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % step == 0) - frozenset(dense)
