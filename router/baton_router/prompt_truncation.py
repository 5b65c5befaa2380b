"""Cuts prompts that are longer than their client wants."""

from __future__ import annotations

from baton_core.errors import InvalidRequestError
from baton_router.generation import TokenIds


def truncate_prompt(token_ids: TokenIds, limit: int, max_tokens: int | None, max_model_len: int) -> TokenIds:
    """Return the last `limit` tokens.

    -1 keeps as many as leave room for `max_tokens` in the context, at least one; without `max_tokens`, as
    many as leave room for one.

    Raises:
        InvalidRequestError: the limit is 0, below -1, or more than the context holds.
    """
    is_int = isinstance(limit, int) and not isinstance(limit, bool)
    if not is_int or not (limit == -1 or 1 <= limit < max_model_len):
        raise InvalidRequestError("truncate_prompt_tokens", limit, f"-1, or 1 to {max_model_len - 1}")
    if limit == -1:
        limit = max(max_model_len - (max_tokens or 1), 1)
    return token_ids[-limit:]
