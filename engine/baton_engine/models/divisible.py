"""Which models can be divided over ranks, and into how many parts."""

from __future__ import annotations

from collections.abc import Mapping

from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import ParallelSizes
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.models.registry import ModelRegistry


def require_divisible(config: ModelConfig, sizes: ParallelSizes) -> None:
    """Refuse to divide a model into parts that it does not have.

    Raises:
        InvalidConfigError: naming the field and what is allowed.
    """
    if sizes.num_ranks == 1:
        return
    if ModelRegistry.is_registered(config.architecture) or not isinstance(
        config, DecoderConfig | LearnedPositionsConfig
    ):
        name = "tensor_parallel_size" if sizes.tensor > 1 else "pipeline_parallel_size"
        value = sizes.tensor if sizes.tensor > 1 else sizes.pipeline
        raise InvalidConfigError(f"{name} is {value}; allowed with {config.architecture}: 1 (no native code)")
    num_layers = sum(len(group.layers) for group in config.kv_spec(1, "float32").groups)
    if sizes.pipeline > num_layers:
        text = f"pipeline_parallel_size is {sizes.pipeline}"
        raise InvalidConfigError(f"{text}; allowed: at most {num_layers}, the model's layers")
    counts, kv_heads = _counts(config), config.kv_spec(1, "float32").num_kv_heads
    reasons = [f"does not divide {count} {what}" for what, count in counts.items() if count % sizes.tensor]
    if kv_heads % sizes.tensor and sizes.tensor % kv_heads:
        reasons.append(f"does not divide {kv_heads} KV heads")
    most = min(counts.values())
    if isinstance(config, DecoderConfig) and config.mixture is not None:
        most = min(most, config.mixture.num_experts)
        if sizes.tensor > config.mixture.num_experts:
            reasons.append(f"is more than {config.mixture.num_experts} experts")
    if reasons:
        allowed = [size for size in range(1, most + 1) if _divides(size, counts, kv_heads)]
        raise InvalidConfigError(
            f"tensor_parallel_size is {sizes.tensor}, which {' and '.join(reasons)}; "
            f"allowed: {', '.join(map(str, allowed))}"
        )


def _divides(size: int, counts: Mapping[str, int], kv_heads: int) -> bool:
    is_dividing_heads = kv_heads % size == 0 or size % kv_heads == 0
    return is_dividing_heads and all(count % size == 0 for count in counts.values())


def _counts(config: DecoderConfig | LearnedPositionsConfig) -> dict[str, int]:
    """Return the numbers of what is divided, by what it is."""
    if isinstance(config, LearnedPositionsConfig):
        return {"heads": config.num_heads, "intermediate size": config.intermediate_size}
    counts = {"query heads": config.attention.num_heads}
    mixture = config.mixture
    if mixture is None or len(mixture.layers) < len(config.layers):
        counts["intermediate size"] = config.feed_forward.intermediate_size
    if mixture is not None and mixture.shared_intermediate_size is not None:
        counts["intermediate size of the shared expert"] = mixture.shared_intermediate_size
    return counts
