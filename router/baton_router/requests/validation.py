"""Checks of what clients send, whichever protocol they speak, before any work is done for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from baton_core.errors import ContextLengthError, InvalidRequestError
from baton_core.requests.vocabulary import check_token_ids
from baton_router.requests.request_limits import RequestLimits
from baton_router.text.chat_template import Conversation
from baton_router.text.prompts import AnyPrompt, TextPair, TokenIds

MAX_SESSION_ID_CHARACTERS: Final = 128
TRACEPARENT: Final = "traceparent"
DATA_PARALLEL_KEY: Final = "x-data-parallel-rank"
"""Header, or key of metadata, that names the data-parallel rank of a request."""
_MAX_RANK_DIGITS: Final = 9
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,64})?")
_MARK: Final = "\0"
"""Marks salts of tenants: no client's own salt may contain it."""


def check_name(field: str, text: str, max_characters: int) -> None:
    """Refuse a name that is too long or cannot be printed.

    Raises:
        InvalidRequestError: naming the field.
    """
    if not isinstance(text, str) or len(text) > max_characters or not text.isprintable():
        raise InvalidRequestError(field, text, f"at most {max_characters} characters, all printable")


def read_priority(value: object) -> int:
    """Return a priority.

    Raises:
        InvalidRequestError: it is no integer of 32 bits.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise InvalidRequestError("priority", value, f"an integer from {-(2**31)} to {2**31 - 1}")
    return value


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


def check_template_trust(prompt: AnyPrompt | TextPair, limits: RequestLimits) -> None:
    """Refuse a conversation that brings its own template where the operator does not trust such.

    Raises:
        InvalidRequestError: naming the field.
    """
    is_own = isinstance(prompt, Conversation) and prompt.template is not None
    if is_own and not limits.trust_request_chat_template:
        allowed = "none: this router runs without --trust-request-chat-template"
        raise InvalidRequestError("chat_template", "a template", allowed)


def check_prompt(
    token_ids: Sequence[int], *, max_model_len: int, vocab_size: int, field: str = "prompt"
) -> None:
    """Check a prompt's tokens, however they came about, against what the workers can hold.

    A `max_tokens` that does not fit beside the prompt is no error: the sequence ends at `max_model_len`.

    Raises:
        ContextLengthError: the prompt leaves no room for a token.
        InvalidRequestError: it is empty, or has a token that the model lacks.
    """
    if not token_ids:
        raise InvalidRequestError(field, "0 tokens", f"1 to {max_model_len - 1} tokens")
    if len(token_ids) >= max_model_len:
        raise ContextLengthError(field, len(token_ids), max_model_len - 1, max_model_len)
    check_token_ids(field, token_ids, vocab_size)


def checked_session_id(field: str, session_id: str) -> str:
    """Return a session's name.

    Raises:
        InvalidRequestError: it is too long; the message names `field`.
    """
    if len(session_id) > MAX_SESSION_ID_CHARACTERS:
        raise InvalidRequestError(field, session_id, f"at most {MAX_SESSION_ID_CHARACTERS} characters")
    return session_id


def read_data_parallel_rank(text: str | None, data_parallel_size: int) -> int | None:
    """Return the rank that a header names; None without one.

    Raises:
        InvalidRequestError: it is no rank of the fleet.
    """
    if text is None:
        return None
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_RANK_DIGITS
    if not is_number or int(text) >= data_parallel_size:
        allowed = f"0 to {data_parallel_size - 1}" if data_parallel_size > 1 else "0: there is one rank"
        raise InvalidRequestError(DATA_PARALLEL_KEY, text, allowed)
    return int(text)


def read_traceparent(text: str) -> str:
    """Return a header's value, or an empty text where it is malformed: a trace is no reason to refuse.

    Source: https://www.w3.org/TR/trace-context/#traceparent-header
    """
    text = text.strip()
    return text if _TRACEPARENT.fullmatch(text) else ""


def tenant_salt(tenant: str, cache_salt: str) -> str:
    """Return the salt of a request of `tenant` that brings `cache_salt`; without a tenant its own is all.

    It is made of these two alone, so every router makes the same.
    """
    if not tenant:
        return cache_salt
    framed = f"{len(tenant)}:{tenant}{cache_salt}".encode()
    return _MARK + blake2b(framed, digest_size=16, person=b"baton cache salt").hexdigest()
