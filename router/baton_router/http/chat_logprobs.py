"""Log-probabilities of an answer's tokens, in OpenAI's form for chats."""

from __future__ import annotations

from collections.abc import Iterable

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.http.chat_replies import ChoiceLogprobs, TokenLogprob, TopLogprob
from baton_router.http.prompt_logprobs import LEAST
from baton_router.http.token_names import token_name
from baton_router.tokenization import Tokenizer


def chat_logprobs(
    entries: Iterable[PositionLogprobs], tokenizer: Tokenizer, *, names_ids: bool
) -> ChoiceLogprobs:
    """Return the entries of one sequence's next tokens; `names_ids`: name tokens by their ids."""
    return ChoiceLogprobs(content=[_of_position(entry, tokenizer, names_ids) for entry in entries])


def _of_position(entry: PositionLogprobs, tokenizer: Tokenizer, names_ids: bool) -> TokenLogprob:
    own, *others = [
        TopLogprob(
            token=token_name(tokenizer, token_id, as_id=names_ids),
            logprob=max(logprob, LEAST),
            bytes=list(tokenizer.token_bytes(token_id)),
        )
        for token_id, logprob in zip(entry.token_ids, entry.logprobs, strict=True)
    ]
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=others)
