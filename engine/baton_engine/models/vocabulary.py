"""The token embedding and the output head, each with a part of the vocabulary where ranks divide it."""

from __future__ import annotations

import logging
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.adapter_places import AdapterPlace
from baton_engine.checkpoint.dummy_weights import DummyWeights
from baton_engine.checkpoint.weights import Part, WeightReader
from baton_engine.models.linear import load_head, share_to_read
from baton_engine.models.shares import WHOLE, Share
from baton_engine.ranks.ranks import Ranks
from baton_kernels.interface.kernels import Function, LayerKernels

_HEAD: Final = "lm_head.weight"
_log = logging.getLogger(__name__)


class Embedding:
    """The table of token embeddings `[vocab_size, size]`, or a rank's rows of it.

    Raises:
        InvalidModelError: the tensor is missing or has another shape.
    """

    def __init__(
        self,
        weights: WeightReader,
        name: str,
        vocab_size: int,
        size: int,
        kernels: LayerKernels,
        ranks: Ranks,
    ) -> None:
        self._ranks = ranks.tensor
        self._kernels = kernels
        self._name, self._shape = name, (vocab_size, size)
        self._tokens = ranks.place.tokens(vocab_size)
        part = None if self._ranks.size == 1 else Part(0, self._tokens)
        self._table = weights.load_table(name, self._shape, part)
        self._adapted: AdapterPlace | None = None
        if weights.adapters is not None:
            self._adapted = weights.adapters.embedding(name.removesuffix(".weight"), self._shape)

    @property
    def rows(self) -> Tensor:
        """The rows of this rank's tokens."""
        return self._table

    def is_head(self, weights: WeightReader) -> bool:
        """Return whether the table may be the output head, too: no other head is stored.

        Source: Transformers 5, which ties no two tensors of a checkpoint that differ.

        Raises:
            InvalidModelError: the stored head has another shape.
        """
        has_head = _HEAD in weights and not isinstance(weights, DummyWeights)
        if not has_head or weights.is_quantized("lm_head"):
            return True
        num_bytes = weights.loaded_bytes
        table = self._table if self._ranks.size == 1 else weights.load(self._name, self._shape)
        is_equal = torch.equal(table, weights.load(_HEAD, self._shape))
        weights.loaded_bytes = num_bytes  # what was compared is not kept
        if is_equal:
            return True
        text = "tie_word_embeddings is true, but %s, which is stored as well, differs from %s: it is used"
        _log.warning(text, _HEAD, self._name)
        return False

    def rows_of(self, share: Share, weights: WeightReader) -> Tensor:
        """Return the rows of this rank's tokens, or of all if the share is whole."""
        is_own = self._ranks.size == 1 or not share.is_whole
        return self._table if is_own else weights.load(self._name, self._shape)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings `[num_tokens, size]` of `token_ids` `[num_tokens] int64`."""
        rows = self._look_up(token_ids)
        return rows if self._adapted is None else self._adapted.add(token_ids, rows)

    def _look_up(self, token_ids: Tensor) -> Tensor:
        if self._ranks.size == 1:
            return self._kernels.look_up(self._table, token_ids)
        if not self._tokens:
            return self._ranks.all_reduce(self._table.new_zeros(len(token_ids), self._table.shape[1]))
        own = token_ids - self._tokens.start
        is_own = (own >= 0) & (own < len(self._tokens))
        rows = self._kernels.look_up(self._table, own.clamp(0, len(self._tokens) - 1))
        return self._ranks.all_reduce(torch.where(is_own[:, None], rows, 0))


class Head:
    """Hidden states to logits; ranks that divide the vocabulary bring theirs to the first of them.

    Args:
        embedding: the table of token embeddings, where it is to be the output head, too; None: `lm_head` is.
        softcap: bound of the logits, which a hyperbolic tangent keeps; None: there is none.

    Raises:
        InvalidModelError: the weights do not fit.
    """

    def __init__(
        self,
        weights: WeightReader,
        embedding: Embedding | None,
        vocab_size: int,
        size: int,
        kernels: LayerKernels,
        ranks: Ranks,
        softcap: float | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._kernels, self._softcap = kernels, softcap
        self._ranks = ranks.tensor
        self._most = -(-vocab_size // self._ranks.size)
        tokens = None if self._ranks.size == 1 else ranks.place.tokens(vocab_size)
        share = WHOLE if tokens is None else Share(outputs=(tokens,))
        table = None
        if embedding is not None and embedding.is_head(weights):
            table = embedding.rows_of(share_to_read(weights, "lm_head", share), weights)
        self._layer = load_head(weights, "lm_head", (vocab_size, size), table, kernels, share)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map `[num_rows, size]` to `[num_rows, vocab_size]`; to its own part at ranks but the first."""
        own = self._layer(hidden)
        if self._ranks.size == 1:
            return self._capped(own)
        parts = self._ranks.gather(functional.pad(own, (0, self._most - own.shape[-1])).contiguous(), 0)
        if parts is None:
            return own
        return self._capped(parts.transpose(0, 1).flatten(1)[:, : self._vocab_size])

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self._softcap
        return logits if cap is None else self._kernels.apply(Function.TANH, logits / cap) * cap
