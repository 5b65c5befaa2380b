"""`tokenization_kwargs`: how prompts become tokens, by the names that vLLM and Transformers have for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_router.embeds.given_embeds import EmbedsPrompt
from baton_router.requests.pooling import SIDES
from baton_router.text.prompts import TokenIds
from baton_router.text.tokenization import Tokenizer

_LIMIT: Final = "truncate_prompt_tokens"
_CUTS: Final = {True: True, "longest_first": True, False: False, None: False, "do_not_truncate": False}
_UNSET: Final = ("padding", "return_tensors")
"""Options of Transformers' tokenizers that may be given as None or False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizationOptions:
    """The options of one call, checked as far as they can be without a model."""

    truncate_prompt_tokens: int | None = None
    """As routers read it: of a prompt to generate from the last so many tokens."""
    add_special_tokens: bool | None = None
    """None: around a text, not around a conversation."""
    truncation: bool = False
    """Cut a prompt to `max_length` tokens as Transformers does: special tokens count, and stay."""
    max_length: int | None = None
    """None: as many tokens as the context holds."""
    truncation_side: str | None = None
    """None: left of a prompt to generate from, right of one to pool, as vLLM's tokenizers have it."""

    def cut(
        self, prompt: str | TokenIds | EmbedsPrompt, tokenizer: Tokenizer, most: int, room: int
    ) -> str | TokenIds | EmbedsPrompt:
        """Return a prompt to generate from as `truncation` asks for it, or as it is.

        A `max_length` goes up to `most`; without one `room` tokens are kept.

        Raises:
            InvalidRequestError: naming the field.
        """
        if not self.truncation:
            return prompt
        if isinstance(prompt, EmbedsPrompt):
            raise InvalidRequestError("truncation", True, "nothing beside prompt_embeds")
        limit = room if self.max_length is None else self._limit(most)
        cuts_left = self.truncation_side != "right"
        if not isinstance(prompt, str):
            return prompt[-limit:] if cuts_left else prompt[:limit]
        adds_special = self.add_special_tokens is not False
        with self.naming_limit():
            whole = tokenizer.encode_pooled(
                (prompt,), add_special_tokens=adds_special, limit=limit, cuts_left=cuts_left
            )
        return whole.token_ids

    def pooled_limit(self, max_model_len: int) -> int | None:
        """Return the tokens that are left of a prompt to pool, as `truncate_prompt_tokens` says it.

        Raises:
            InvalidRequestError: naming the field.
        """
        if not self.truncation:
            return self.truncate_prompt_tokens
        return -1 if self.max_length is None else self._limit(max_model_len)

    @contextmanager
    def naming_limit(self) -> Iterator[None]:
        """Let errors about the limit name the field that it is of, given or not."""
        try:
            yield
        except InvalidRequestError as error:
            if self.truncation and error.field == _LIMIT:
                error.rename("max_length")
            raise

    def _limit(self, most: int) -> int:
        length = self.max_length
        if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= most:
            raise InvalidRequestError("max_length", length, f"1 to {most}")
        return length


_KNOWN: Final = tuple(one.name for one in fields(TokenizationOptions))


def read_tokenization(given: Mapping[str, Any] | None, *, is_pooled: bool = False) -> TokenizationOptions:
    """Read and check the options that a caller gave.

    Raises:
        InvalidRequestError: one is unknown, of the wrong kind, or does not go with another.
    """
    if given is not None and not isinstance(given, Mapping):
        raise InvalidRequestError("tokenization_kwargs", given, f"a dictionary of {', '.join(_KNOWN)}")
    values = dict(given or {})
    for name, value in values.items():
        if name not in _KNOWN and not (name in _UNSET and value in (None, False)):
            raise InvalidRequestError("tokenization_kwargs", name, ", ".join(_KNOWN))
    truncation = values.get("truncation")
    if not isinstance(truncation, bool | str | None) or truncation not in _CUTS:
        allowed = "True or 'longest_first', False or 'do_not_truncate'"
        raise InvalidRequestError("truncation", truncation, allowed)
    options = {name: value for name, value in values.items() if name in _KNOWN}
    own = TokenizationOptions(**{**options, "truncation": _CUTS[truncation]})
    _check(own, is_pooled=is_pooled)
    return own


def _check(own: TokenizationOptions, *, is_pooled: bool) -> None:
    if not isinstance(own.add_special_tokens, bool | None):
        raise InvalidRequestError("add_special_tokens", own.add_special_tokens, "True or False")
    if own.truncation_side not in (None, *SIDES):
        raise InvalidRequestError("truncation_side", own.truncation_side, " or ".join(SIDES))
    if own.max_length is not None and not own.truncation:
        raise InvalidRequestError("max_length", own.max_length, "None, or a number beside truncation=True")
    if own.truncation and own.truncate_prompt_tokens is not None:
        raise InvalidRequestError(_LIMIT, own.truncate_prompt_tokens, "None beside truncation")
    if own.truncation_side is not None and not own.truncation and not is_pooled:
        allowed = f"None without truncation=True: {_LIMIT} keeps the last tokens"
        raise InvalidRequestError("truncation_side", own.truncation_side, allowed)
