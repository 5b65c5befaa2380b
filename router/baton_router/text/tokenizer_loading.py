"""Loads the backend of a model's tokenizer from its folder."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer

from baton_core.errors import InvalidModelError
from baton_router.text.model_folder import ModelFolder
from baton_router.text.text_growth import check_growth


def load_backend(model: ModelFolder) -> Tokenizer:
    """Return the backend with the model's special tokens, without truncation and padding.

    Raises:
        InvalidModelError: the file is none of the tokenizers library, or its rules can make a text too long.
    """
    try:
        if model.byte_level_bpe is None:
            backend = Tokenizer.from_file(str(model.tokenizer_file))
        else:
            backend = model.byte_level_bpe.build(model.special_tokens.get("bos_token"))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidModelError(
            f"{model.tokenizer_file} cannot be loaded ({error}); allowed: a file of the tokenizers library"
        ) from error
    check_growth(str(model.tokenizer_file), backend)
    backend.no_truncation()
    backend.no_padding()
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    wanted = dict.fromkeys((*model.special_tokens.values(), *model.extra_special_tokens))
    backend.add_tokens([AddedToken(token, special=True) for token in wanted if token not in known])
    return backend
