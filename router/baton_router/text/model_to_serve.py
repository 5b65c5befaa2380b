"""Reads from the router's folder what its workers have to agree with."""

from __future__ import annotations

from baton_core.model.model_description import describe_model
from baton_core.sessions.served_model import ServedModel
from baton_router.text.model_folder import ModelFolder
from baton_service.tokenizer_files import read_tokenizer_digest


def read_served_model(model: ModelFolder, logits_processors: tuple[str, ...] = ()) -> ServedModel:
    """Return what a worker must say of itself to join; blocks on the disk.

    Args:
        logits_processors: names that requests may ask for.

    Raises:
        InvalidModelError: a file is broken.
    """
    tokenizer = read_tokenizer_digest(model.tokenizer_path)
    return ServedModel(
        description=describe_model(model.config, model.eos_token_ids, model.vocab_size, tokenizer),
        vocab_size=model.vocab_size,
        has_chosen_tokenizer=model.tokenizer_path != model.path,
        logits_processors=logits_processors,
    )
