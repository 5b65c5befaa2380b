"""Tokenize and Detokenize: the model's tokenizer for clients. Runs in the tokenizing threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.vocabulary import check_token_ids
from baton_router.requests.request_limits import DEFAULT_LIMITS, RequestLimits
from baton_router.requests.validation import check_template_trust
from baton_router.text.model_folder import ModelFolder
from baton_router.text.prompts import Prompt, TokenIds
from baton_router.text.tokenization import Tokenizer

MAX_TOKENS: Final = 2**20
MAX_TEXT_BYTES: Final = 3 * 2**20
"""Largest text; both limits leave room in a message."""


class TextConverter:
    """Checks and replies requests for one served model."""

    def __init__(
        self, model: ModelFolder, tokenizer: Tokenizer, limits: RequestLimits = DEFAULT_LIMITS
    ) -> None:
        self._vocab_size = model.vocab_size
        self._tokenizer = tokenizer
        self._limits = limits

    def tokenize(self, prompt: Prompt, *, add_special_tokens: bool | None = None) -> TokenIds:
        """Return the token ids of a text or of a conversation.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
        """
        check_template_trust(prompt, self._limits)
        token_ids = self._tokenizer.encode_prompt(prompt, add_special_tokens=add_special_tokens)
        if len(token_ids) > MAX_TOKENS:
            raise InvalidRequestError("prompt", f"{len(token_ids)} tokens", f"at most {MAX_TOKENS} tokens")
        return token_ids

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
        """
        num_tokens = len(token_ids)
        if num_tokens > MAX_TOKENS:
            raise InvalidRequestError("token_ids", f"{num_tokens} ids", f"at most {MAX_TOKENS} ids")
        check_token_ids("token_ids", token_ids, self._vocab_size)
        text = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        num_bytes = len(text.encode())
        if num_bytes > MAX_TEXT_BYTES:
            allowed = f"at most {MAX_TEXT_BYTES} bytes of text"
            raise InvalidRequestError("token_ids", f"{num_bytes} bytes of text", allowed)
        return text
