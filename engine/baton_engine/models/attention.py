"""Self-attention of one decoder layer over the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import Part, WeightReader
from baton_engine.models.decoder_config import AttentionConfig
from baton_engine.models.linear import load_projection
from baton_engine.models.norm import NormLoader, RMSNorm
from baton_engine.models.shares import Layer, Share, load_summed, scaled, share_of_outputs
from baton_engine.models.step_attention import StepAttention
from baton_engine.ranks.ranks import Ranks
from baton_kernels.interface.kernels import LayerKernels, rotate

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine, `[num_tokens, 1, rotary_dim]` each."""


class SelfAttention:
    """Grouped-query attention, with one projection to Q, K and V.

    Args:
        in_size: width of what it maps; None: `hidden_size`, that of what it returns.

    Raises:
        InvalidModelError: the weights do not fit the configuration.
    """

    def __init__(
        self,
        config: AttentionConfig,
        weights: WeightReader,
        norms: NormLoader,
        kernels: LayerKernels,
        ranks: Ranks,
        *,
        layer: int,
        hidden_size: int,
        prefix: str,
        is_causal: bool,
        window: int | None,
        in_size: int | None = None,
    ) -> None:
        self._config = config
        self._layer = layer
        self._is_causal, self._window = is_causal, window
        heads = scaled(ranks.place.part(config.num_heads), config.head_dim)
        kv_heads = scaled(ranks.place.kv_heads(config.num_kv_heads), config.head_dim)
        self._sizes = [len(heads), len(kv_heads), len(kv_heads)]
        self._qkv = load_projection(
            weights,
            [f"{prefix}.{name}" for name in config.projections],
            kernels,
            in_size=in_size or hidden_size,
            out_sizes=[config.query_size, config.kv_size, config.kv_size],
            has_bias=config.has_qkv_bias,
            share=share_of_outputs(ranks, heads, kv_heads, kv_heads),
        )

        def load_output(share: Share, has_bias: bool) -> Layer:
            return load_projection(
                *(weights, [f"{prefix}.o_proj"], kernels),
                in_size=config.query_size,
                out_sizes=[hidden_size],
                has_bias=has_bias,
                share=share,
            )

        self._output = load_summed(load_output, ranks, heads, has_bias=config.has_output_bias)
        self._qk_norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.has_qk_norm:
            size = config.head_dim
            self._qk_norms = norms.load(f"{prefix}.q_norm", size), norms.load(f"{prefix}.k_norm", size)

        self._sinks: Tensor | None = None
        if config.has_sinks:
            own = None if ranks.tensor.size == 1 else Part(0, ranks.place.part(config.num_heads))
            self._sinks = weights.load(f"{prefix}.sinks", (config.num_heads,), torch.float32, own)

    def forward(
        self, hidden: Tensor, rotation: Rotation, attention: StepAttention, rows: Tensor | None = None
    ) -> Tensor:
        """Map `[num_tokens, in_size]` to a new `[num_rows, hidden_size]`, of `rows` or of all tokens.

        Writes K and V of all tokens to the cache, unless every token sees its whole prompt.
        """
        config = self._config
        q, k, v = (
            part.view(len(hidden), -1, config.head_dim)
            for part in torch.split(self._qkv(hidden), self._sizes, dim=-1)
        )
        if self._qk_norms is not None:
            q_norm, k_norm = self._qk_norms
            q, k = q_norm(q), k_norm(k)
        if self._is_causal:
            attended = attention.rotate_and_attention(
                self._layer, q, k, v, rotation, scale=config.scale, softcap=config.softcap, sinks=self._sinks
            )
        else:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
            attended = attention.bidirectional(q, k, v, scale=config.scale, window=self._window)
        return self._output((attended if rows is None else attended[rows]).flatten(-2))
