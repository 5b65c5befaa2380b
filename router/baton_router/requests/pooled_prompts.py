"""Prompts of which something is pooled: their tokens, cut where that is asked for, and what is pooled."""

from __future__ import annotations

from typing import Final

from baton_core.errors import ContextLengthError, InvalidRequestError
from baton_core.requests.pooling import PoolingModel, PoolingSpec
from baton_core.requests.vocabulary import check_token_ids
from baton_router.embeds.given_embeds import EmbedsPrompt
from baton_router.requests.generation import GenerationRequest, PoolingRequest
from baton_router.text.chat_template import Conversation
from baton_router.text.prompts import TextPair, TokenIds
from baton_router.text.tokenization import PooledPrompt, Tokenizer

SIDES: Final = ("left", "right")


def read_pooled_prompt(
    request: GenerationRequest,
    pooling: PoolingRequest,
    tokenizer: Tokenizer,
    model: PoolingModel | None,
    max_model_len: int,
    vocab_size: int,
) -> tuple[TokenIds, PoolingSpec]:
    """Return the tokens of a request's prompt, and what is pooled of it; `model` is None where none is known.

    Raises:
        ContextLengthError: the prompt is too long.
        InvalidRequestError: a field is out of range, or the model cannot pool this; the message names it.
    """
    if pooling.truncation_side not in SIDES:
        raise InvalidRequestError("truncation_side", pooling.truncation_side, " or ".join(SIDES))
    limit = _limit(request.truncate_prompt_tokens, max_model_len)
    prompt = _encode(request, pooling, tokenizer, limit if pooling.is_cut else None)
    has_types = model is None or model.has_token_types
    spec = PoolingSpec(
        task=pooling.task,
        dimensions=pooling.dimensions,
        use_activation=pooling.use_activation,
        type_one_from=prompt.type_one_from if has_types else pooling.type_one_from,
    )
    if model is not None:
        model.check(spec)
    _check_tokens(request.prompt_field, prompt.token_ids, limit, max_model_len, vocab_size)
    return prompt.token_ids, spec


def _limit(value: int | None, max_model_len: int) -> int | None:
    if value is None:
        return None
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or not (value == -1 or 1 <= value <= max_model_len):
        raise InvalidRequestError("truncate_prompt_tokens", value, f"-1, or 1 to {max_model_len}")
    return max_model_len if value == -1 else value


def _encode(
    request: GenerationRequest, pooling: PoolingRequest, tokenizer: Tokenizer, limit: int | None
) -> PooledPrompt:
    cuts_left = pooling.truncation_side == "left"
    match request.prompt:
        case TextPair(first=first, second=second):
            texts: tuple[str, ...] = (first, second)
            adds_special = request.add_special_tokens is not False
        case Conversation() as conversation:
            texts, adds_special = (tokenizer.render_chat(conversation),), bool(request.add_special_tokens)
        case str(text):
            texts, adds_special = (text,), request.add_special_tokens is not False
        case EmbedsPrompt():
            raise InvalidRequestError("prompt_embeds", "embeddings", "texts and token ids, to pool")
        case token_ids:
            return _cut(PooledPrompt(token_ids, pooling.type_one_from), limit, cuts_left=cuts_left)
    return tokenizer.encode_pooled(
        texts,
        add_special_tokens=adds_special,
        limit=limit,
        cuts_left=cuts_left,
        field=request.prompt_field,
    )


def _cut(prompt: PooledPrompt, limit: int | None, *, cuts_left: bool) -> PooledPrompt:
    token_ids, type_one_from = prompt
    if limit is None or limit >= len(token_ids):
        return prompt
    if not cuts_left:
        return PooledPrompt(token_ids[:limit], type_one_from)
    num_dropped = len(token_ids) - limit
    return PooledPrompt(
        token_ids[num_dropped:], None if type_one_from is None else max(0, type_one_from - num_dropped)
    )


def _check_tokens(
    field: str, token_ids: TokenIds, limit: int | None, max_model_len: int, vocab_size: int
) -> None:
    if not token_ids:
        raise InvalidRequestError(field, "0 tokens", f"1 to {max_model_len} tokens")
    if len(token_ids) > max_model_len:
        raise ContextLengthError(field, len(token_ids), max_model_len, max_model_len)
    if limit is not None and len(token_ids) > limit:
        raise InvalidRequestError(field, f"{len(token_ids)} tokens", f"1 to {limit} tokens")
    check_token_ids(field, token_ids, vocab_size)
