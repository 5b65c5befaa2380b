"""The products of a model's layers, by its configuration: what an estimate of its work is made of."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import ITEM_BYTES, KVSpec
from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.worker.model_work import AttentionGroup, ModelWork, Product
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.encoder_config import EncoderConfig
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.models.mixture_config import MixtureConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    products: tuple[Product, ...]
    head: tuple[Product, ...]
    windows: tuple[int | None, ...]
    query_size: int
    is_causal: bool = True


def model_work(
    config: ModelConfig, kv_spec: KVSpec, *, dtype: str, read_bytes: int, sizes: ParallelSizes
) -> ModelWork:
    """Return the shape of a model that is loaded: `read_bytes` is as in `LoadedEngine`, of the leader.

    Raises:
        InvalidConfigError: the layers of such a model are not known.
    """
    shape = _shape(config)
    in_layers, in_head = (sum(one.num_weights for one in group) for group in (shape.products, shape.head))
    in_last = sizes.stages[-1] / sum(sizes.stages) if sizes.stages else 1 / sizes.pipeline
    own = (in_layers * in_last + in_head) / sizes.tensor  # the leader is of the last stage
    kv_bytes = 2 * kv_spec.num_kv_heads * kv_spec.head_dim * ITEM_BYTES[kv_spec.dtype]
    return ModelWork(
        products=shape.products,
        head=shape.head,
        groups=tuple(
            AttentionGroup(num_layers=shape.windows.count(window), window=window)
            for window in dict.fromkeys(shape.windows)
        ),
        query_size=shape.query_size,
        kv_bytes=kv_bytes if shape.is_causal else 0,
        weight_bytes=read_bytes / own,
        item_bytes=ITEM_BYTES[dtype],
        num_ranks=sizes.num_ranks,
        is_causal=shape.is_causal,
    )


def require_known_work(config: ModelConfig) -> None:
    """Refuse a model of which `model_work` knows no shape.

    Raises:
        InvalidConfigError: naming the architecture.
    """
    _shape(config)


def _shape(config: ModelConfig) -> _Shape:
    match config:
        case DecoderConfig():
            return _of_decoder(config)
        case EncoderConfig():
            return _of_encoder(config)
        case LearnedPositionsConfig():
            return _of_learned_positions(config)
    text = f"enable_mfu_metrics is True; allowed with {config.architecture}: False"
    raise InvalidConfigError(f"{text} (the work of models with native code is known)")


def _alike(count: int, *shapes: tuple[int, int]) -> tuple[Product, ...]:
    """Return products that are in so many layers."""
    return tuple(
        Product(inputs=inputs, outputs=outputs, num_used=count, num_stored=count)
        for inputs, outputs in shapes
        if count
    )


def _of_decoder(config: DecoderConfig) -> _Shape:
    size, attention, num_layers = config.hidden_size, config.attention, len(config.layers)
    query, num_sparse = attention.query_size, len(config.mixture.layers) if config.mixture else 0
    mlp = config.feed_forward.intermediate_size
    products = _alike(num_layers, (size, query + 2 * attention.kv_size), (query, size))
    products += _alike(num_layers - num_sparse, (size, 2 * mlp), (mlp, size))
    if config.mixture is not None:
        products += _of_mixture(config.mixture, num_sparse)
    return _Shape(
        products=products,
        head=_alike(int(config.has_head), (size, config.vocab_size)),
        windows=tuple(layer.window for layer in config.layers),
        query_size=query,
        is_causal=config.is_causal,
    )


def _of_mixture(config: MixtureConfig, num_layers: int) -> tuple[Product, ...]:
    size, inner, shared = config.hidden_size, config.intermediate_size, config.shared_intermediate_size
    experts = tuple(
        Product(
            inputs=inputs,
            outputs=outputs,
            num_used=num_layers * config.num_experts_per_token,
            num_stored=num_layers * config.num_experts,
        )
        for inputs, outputs in ((size, 2 * inner), (inner, size))
    )
    products = (*_alike(num_layers, (size, config.num_experts)), *experts)
    if shared is None:
        return products
    return products + _alike(num_layers, (size, 2 * shared), (shared, size), (size, 1))


def _of_encoder(config: EncoderConfig) -> _Shape:
    size, mlp, num_layers = config.hidden_size, config.intermediate_size, len(config.layers)
    up = 2 * mlp if config.is_gated else mlp
    return _Shape(
        products=_alike(num_layers, (size, 3 * size), (size, size), (size, up), (mlp, size)),
        head=(),
        windows=tuple(layer.window for layer in config.layers),
        query_size=size,
        is_causal=config.is_causal,
    )


def _of_learned_positions(config: LearnedPositionsConfig) -> _Shape:
    size, width, mlp, num_layers = (
        config.hidden_size,
        config.embedding_size,
        config.intermediate_size,
        config.num_layers,
    )
    is_projected = int(width != size)
    return _Shape(
        products=(
            *_alike(num_layers, (size, 3 * size), (size, size), (size, mlp), (mlp, size)),
            *_alike(is_projected, (width, size)),
        ),
        head=(
            *_alike(is_projected, (size, width)),
            *_alike(int(config.has_head), (width, config.vocab_size)),
        ),
        windows=(None,) * num_layers,
        query_size=size,
    )
