"""Prompts of which something is pooled, cut where that is asked for, and the scores of pairs of texts."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from operator import mul
from types import MappingProxyType
from typing import Any, Final

from baton_core.errors import ContextLengthError, InvalidRequestError
from baton_core.requests.pooling import PoolingModel, PoolingSpec, PoolingTask
from baton_core.requests.vocabulary import check_token_ids
from baton_core.worker.step_plan import PooledValues
from baton_router.embeds.given_embeds import EmbedsPrompt
from baton_router.requests.generation import GenerationRequest, PoolingRequest
from baton_router.text.chat_template import Conversation
from baton_router.text.large_texts import TooManyTokensError
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
    try:
        prompt = _encode(request, pooling, tokenizer, limit if pooling.is_cut else None, max_model_len)
    except TooManyTokensError as error:
        raise ContextLengthError(
            request.prompt_field, error.num_tokens, max_model_len, max_model_len, is_least=True
        ) from None
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
    request: GenerationRequest, pooling: PoolingRequest, tokenizer: Tokenizer, limit: int | None, most: int
) -> PooledPrompt:
    cuts_left = pooling.truncation_side == "left"
    match request.prompt:
        case TextPair(first=first, second=second):
            texts: tuple[str, ...] = (first, second)
            adds_special = request.add_special_tokens is not False
        case Conversation() as conversation:
            texts = (_render(conversation, tokenizer, request.prompt_field),)
            adds_special = bool(request.add_special_tokens)
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
        most=most,
        cuts_left=cuts_left,
        field=request.prompt_field,
    )


def _render(conversation: Conversation, tokenizer: Tokenizer, field: str) -> str:
    """Return the text of a conversation; errors name the places of messages in the field that has them."""
    try:
        return tokenizer.render_chat(conversation)
    except InvalidRequestError as error:
        if field.startswith(("messages", "input")) and error.field.startswith("messages["):
            error.rename(field + error.field.removeprefix("messages"))
        raise


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


def lacks_task(name: str, model: PoolingModel, allowed: str, task: PoolingTask | None) -> InvalidRequestError:
    """Return the refusal of a request that needs another model than the one of this name.

    `task` is one that would do; None is to generate.
    """
    classes = f" and {len(model.labels)} classes" if model.labels else ""
    tasks = ", ".join(model.tasks)
    way = model.way_to(task)
    hint = f"; for {task or 'generate'} run its workers with --{way}" if way else ""
    return InvalidRequestError("model", name, f"a model that {allowed}; this one has {tasks}{classes}{hint}")


def pair_counts(num_first: int, num_second: int, names: tuple[str, str] = ("data_1", "data_2")) -> int:
    """Return how often the first texts are repeated, so that each has its counterpart.

    `names` are those of both fields.

    Raises:
        InvalidRequestError: there are neither one nor as many first texts as second ones, or there are none.
    """
    if not num_first or not num_second:
        raise InvalidRequestError(names[bool(num_first)], [], "at least one text")
    if num_first == num_second:
        return 1
    if num_first == 1:
        return num_second
    first, second = names
    allowed = f"one text, or as many as {second} has, {num_second}"
    raise InvalidRequestError(first, f"{num_first} texts", allowed)


def pair_prompt(
    first: str,
    second: str,
    template: str | None = None,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    *,
    is_own: bool = True,
) -> TextPair | Conversation:
    """Return what a cross-encoder reads of a pair: two texts, or what a template makes of them.

    The template gets a message with the role query, one with the role document, and `arguments`. Unless it
    is the request's own, it is the one that the tokenizer was given.
    """
    if template is None:
        return TextPair(first=first, second=second)
    return Conversation(
        messages=({"role": "query", "content": first}, {"role": "document", "content": second}),
        add_generation_prompt=False,
        template=template if is_own else None,
        template_arguments=arguments,
    )


def floats_of(pooled: PooledValues) -> Sequence[float]:
    """Return the numbers of a result, row by row."""
    values = array("f")
    values.frombytes(pooled.values)
    return values


def similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of two vectors, -1 to 1; 0 where one has no length."""
    length = math.hypot(*first) * math.hypot(*second)
    cosine = math.fsum(map(mul, first, second)) / length if length else 0.0
    return max(min(cosine, 1.0), -1.0)  # rounding can exceed 1


def late_interaction(first: PooledValues, second: PooledValues) -> float:
    """Return the sum over the first text's tokens of their largest product with one of the second's."""
    ones, others = _rows(first), _rows(second)
    return sum(max(math.fsum(map(mul, one, other)) for other in others) for one in ones)


def _rows(pooled: PooledValues) -> list[Sequence[float]]:
    values, (num_tokens, size) = floats_of(pooled), pooled.shape
    return [values[row * size : (row + 1) * size] for row in range(num_tokens)]
