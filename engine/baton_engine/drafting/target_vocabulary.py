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
    """Return those of a decoder; what its ranks divide, or another stage has, is read whole once more.

    Raises:
        InvalidModelError: the weights cannot be read.
    """
    model = target.model
    assert isinstance(model, Decoder), "other models are refused before"
    config, kernels = model.config, target.kernels.layers
    is_whole = target.ranks.tensor.size == 1
    embedding = model.token_embedding if is_whole else None
    logits: Callable[[Tensor], Tensor] | None = model.logits if is_whole and needs_logits else None
    lacks_logits = needs_logits and not is_whole
    lacks_embedding = needs_embedding or (lacks_logits and config.tie_word_embeddings)
    if embedding is None and lacks_embedding:
        embedding = load_embedding(config, target.open_weights(), kernels, ALONE)
    if lacks_logits:
        logits = load_output_head(config, target.open_weights(), embedding, kernels, ALONE)
    return TargetVocabulary(embedding=embedding, logits=logits)
