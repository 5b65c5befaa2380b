"""How an HTTP call goes on with an answer whose stream broke."""

from __future__ import annotations

import time
from typing import Any, Protocol

from baton_core.errors import InvalidRequestError
from baton_router.generation import Resumption
from baton_router.http.calls import Call
from baton_router.received_tokens import read_resumption


class ResumeFields(Protocol):
    """The fields of a request that say what its client has already."""

    @property
    def stream(self) -> bool | None: ...
    @property
    def request_id(self) -> str | None: ...
    @property
    def resume_token(self) -> str | None: ...
    @property
    def num_received_tokens(self) -> int | list[int] | None: ...


def read_resuming(call: Call[Any], fields: ResumeFields, num_prompts: int = 1) -> Resumption | None:
    """Return what a client has already, and give the call the name that it had; None where it is new.

    Raises:
        InvalidRequestError: a field does not go with the others, or the token is none; the message names it.
    """
    counts = fields.num_received_tokens
    given = [counts] if isinstance(counts, int) else counts or []
    resumption = read_resumption(fields.resume_token or "", given)
    if resumption is None:
        return None
    if num_prompts > 1:
        allowed = "beside one prompt: each has a token of its own"
        raise InvalidRequestError("resume_token", f"beside {num_prompts} prompts", allowed)
    if any(given) and not fields.stream:
        allowed = "zeros, unless stream is true: other answers are whole"
        raise InvalidRequestError("num_received_tokens", counts, allowed)
    if fields.request_id is None:
        name = call.site.door.resume_tokens.read(resumption.token, time.time()).request_id
        call.adopt_request_id(name if name.isascii() else None)
    return resumption
