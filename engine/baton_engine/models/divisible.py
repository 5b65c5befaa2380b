"""Which models can be divided over ranks, and into how many parts."""

from __future__ import annotations

from collections.abc import Mapping

from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import NUM_SUMS, ExpertPlacement, ParallelSizes
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.encoder_config import EncoderConfig
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.models.registry import ModelRegistry


def require_divisible(config: ModelConfig, sizes: ParallelSizes) -> None:
    """Refuse to divide a model into parts that it does not have.

    Raises:
        InvalidConfigError: naming the field and what is allowed.
    """
    mixture = config.mixture if isinstance(config, DecoderConfig) else None
    is_whole = sizes.experts is not ExpertPlacement.CUT
    if is_whole and mixture is None and isinstance(config, DecoderConfig | LearnedPositionsConfig):
        text = f"enable_expert_parallel is True; allowed with {config.architecture}"
        raise InvalidConfigError(f"{text}: False, since it has no experts")
    if sizes.num_ranks == 1 and not sizes.is_invariant:
        return
    is_encoder = isinstance(config, DecoderConfig | EncoderConfig) and not config.is_causal
    is_foreign = is_encoder or ModelRegistry.is_registered(config.architecture)
    if is_foreign or not isinstance(config, DecoderConfig | LearnedPositionsConfig):
        name, value = "pipeline_parallel_size", str(sizes.pipeline)
        if sizes.is_invariant:
            name, value = "parallel_invariant", "True"
        elif sizes.tensor > 1:
            name, value = "tensor_parallel_size", str(sizes.tensor)
        one = False if sizes.is_invariant else 1
        text = f"{name} is {value}; allowed with {config.architecture}: {one}"
        reason = "an encoder" if is_encoder else "no native code"
        raise InvalidConfigError(f"{text} ({reason})")
    num_layers = sum(len(group.layers) for group in config.kv_spec(1, "float32").groups)
    if sizes.pipeline > num_layers:
        text = f"pipeline_parallel_size is {sizes.pipeline}"
        raise InvalidConfigError(f"{text}; allowed: at most {num_layers}, the model's layers")
    if sizes.stages and sum(sizes.stages) != num_layers:
        text = f"pipeline_layer_partition is {','.join(map(str, sizes.stages))}"
        raise InvalidConfigError(f"{text}; allowed: a sum of {num_layers}, the model's layers")
    if sizes.is_invariant:
        _require_parts(config, sizes, is_whole)
    counts, kv_heads = _counts(config, is_whole), config.kv_spec(1, "float32").num_kv_heads
    reasons = [f"does not divide {count} {what}" for what, count in counts.items() if count % sizes.tensor]
    if kv_heads % sizes.tensor and sizes.tensor % kv_heads:
        reasons.append(f"does not divide {kv_heads} KV heads")
    most = min(counts.values())
    if is_whole and mixture is not None:
        most = min(most, mixture.num_experts)
        if sizes.tensor > mixture.num_experts:
            reasons.append(f"is more than {mixture.num_experts} experts")
    if reasons:
        allowed = [size for size in range(1, most + 1) if _divides(size, counts, kv_heads)]
        raise InvalidConfigError(
            f"tensor_parallel_size is {sizes.tensor}, which {' and '.join(reasons)}; "
            f"allowed: {', '.join(map(str, allowed))}"
        )


def require_plain_sums(device_type: str, *, is_quantized: bool) -> None:
    """Refuse layers whose sums cannot have the same bits for every tensor-parallel size.

    Raises:
        InvalidConfigError: naming the reason.
    """
    if is_quantized or device_type != "cpu":
        where = "quantized layers" if is_quantized else f"device {device_type}"
        raise InvalidConfigError(f"parallel_invariant is True; allowed with {where}: False")


def _require_parts(
    config: DecoderConfig | LearnedPositionsConfig, sizes: ParallelSizes, has_whole_experts: bool
) -> None:
    """Refuse sums that `NUM_SUMS` parts do not divide."""
    text = "parallel_invariant is True"
    if NUM_SUMS % sizes.tensor:
        allowed = [size for size in range(1, NUM_SUMS + 1) if NUM_SUMS % size == 0]
        sizes_allowed = ", ".join(map(str, allowed))
        raise InvalidConfigError(f"{text} with tensor_parallel_size {sizes.tensor}; allowed: {sizes_allowed}")
    mixture = config.mixture if isinstance(config, DecoderConfig) else None
    if mixture is not None and sizes.tensor > 1 and not has_whole_experts:
        raise InvalidConfigError(
            f"{text} with a mixture of experts; allowed with enable_expert_parallel: True"
        )
    head_dim = (config.attention if isinstance(config, DecoderConfig) else config).head_dim
    for what, count in _counts(config, has_whole_experts=True).items():
        num_inputs = count * head_dim if "heads" in what else count
        if num_inputs % NUM_SUMS and "shared" not in what:
            raise InvalidConfigError(
                f"{text} with {num_inputs} inputs of {what}; allowed: multiples of {NUM_SUMS}"
            )


def _divides(size: int, counts: Mapping[str, int], kv_heads: int) -> bool:
    is_dividing_heads = kv_heads % size == 0 or size % kv_heads == 0
    return is_dividing_heads and all(count % size == 0 for count in counts.values())


def _counts(config: DecoderConfig | LearnedPositionsConfig, has_whole_experts: bool) -> dict[str, int]:
    """Return the numbers of what is divided, by what it is."""
    if isinstance(config, LearnedPositionsConfig):
        return {"heads": config.num_heads, "intermediate size": config.intermediate_size}
    counts = {"query heads": config.attention.num_heads}
    mixture = config.mixture
    if mixture is None or len(mixture.layers) < len(config.layers):
        counts["intermediate size"] = config.feed_forward.intermediate_size
    if mixture is not None and not has_whole_experts:
        counts["intermediate size of an expert"] = mixture.intermediate_size
    if mixture is not None and mixture.shared_intermediate_size is not None:
        counts["intermediate size of the shared expert"] = mixture.shared_intermediate_size
    return counts
