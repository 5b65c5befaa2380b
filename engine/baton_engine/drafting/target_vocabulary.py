"""The token embeddings and the output head of a model, as a head that drafts for it shares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from baton_engine.loading import LoadedModel
from baton_engine.models.decoder import Decoder, load_embedding, load_output_head
from baton_engine.models.vocabulary import Embedding
from baton_engine.ranks.ranks import ALONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetVocabulary:
    """Both with the whole vocabulary; None where the head that drafts has its own."""

    embedding: Embedding | None
    logits: Callable[[Tensor], Tensor] | None
    """Maps hidden states `[num_rows, hidden_size]` to logits `[num_rows, vocab_size]`."""


def share_vocabulary(target: LoadedModel, *, needs_embedding: bool, needs_logits: bool) -> TargetVocabulary:
    """Return those of a decoder; where its ranks divide the vocabulary, read it whole once more.

    Raises:
        InvalidModelError: the weights cannot be read.
    """
    model = target.model
    assert isinstance(model, Decoder), "other models are refused before"
    if target.ranks.tensor.size == 1:
        return TargetVocabulary(
            embedding=model.token_embedding if needs_embedding else None,
            logits=model.logits if needs_logits else None,
        )
    embedding, logits, config = None, None, model.config
    if needs_embedding or needs_logits:
        weights, kernels = target.open_weights(), target.kernels.layers
        if needs_embedding or config.tie_word_embeddings:
            embedding = load_embedding(config, weights, kernels, ALONE)
        if needs_logits:
            logits = load_output_head(config, weights, embedding, kernels, ALONE)
    return TargetVocabulary(embedding=embedding, logits=logits)
