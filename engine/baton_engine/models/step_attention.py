"""Attention of one step, as a model sees it: layer by layer, over a cache that it does not know."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton_core.kv_layout.kv_spec import KVSpec
from baton_kernels.interface.cache_dtype import UNSCALED, LayerKVScales
from baton_kernels.interface.kernels import AttentionBatch, AttentionKernels


class StepAttention:
    """Kernels, KV pool and the batches of one step, one batch per KV group of `spec`, in its order."""

    def __init__(
        self,
        kernels: AttentionKernels,
        kv_pool: Tensor,
        spec: KVSpec,
        batches: Sequence[AttentionBatch],
        token_types: Tensor | None = None,
    ) -> None:
        self._kernels = kernels
        self._kv_pool = kv_pool
        self._places = {
            layer: (index, batch)
            for group, batch in zip(spec.groups, batches, strict=True)
            for index, layer in enumerate(group.layers)
        }
        self._scales = [LayerKVScales(*pair) for pair in spec.scales]
        self.positions = batches[0].positions
        """`[num_tokens] int64`, position of each token in its sequence."""
        self.query_lens = batches[0].query_lens
        """Number of tokens of each sequence in this step, back to back."""
        self.token_types = token_types
        """`[num_tokens] int64`, type of each token; None: all are of type 0."""

    def attention(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Write K and V of a layer, then attend with q; see `AttentionKernels.attention`."""
        index, batch = self._places[layer]
        scales = self._scales[layer] if self._scales else UNSCALED
        self._kernels.write(k, v, self._kv_pool, index, batch, scales)
        return self._kernels.attention(q, k, v, self._kv_pool, index, batch, scale, softcap, scales, sinks)

    def rotate_and_attention(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: tuple[Tensor, Tensor],
        *,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """`attention` after rotating q and k by cosine and sine, `[num_tokens, 1, rotary_dim]` each."""
        index, batch = self._places[layer]
        scales = self._scales[layer] if self._scales else UNSCALED
        q, k = self._kernels.rotate_and_write(q, k, v, *rotation, self._kv_pool, index, batch, scales)
        return self._kernels.attention(q, k, v, self._kv_pool, index, batch, scale, softcap, scales, sinks)

    def bidirectional(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> Tensor:
        """Attend within each sequence without a cache; see `AttentionKernels.bidirectional`."""
        return self._kernels.bidirectional(q, k, v, self.query_lens, scale, window)
