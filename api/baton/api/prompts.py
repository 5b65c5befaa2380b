"""Reads prompts as callers give them: text, token ids, or a dictionary, also of embeddings; one or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor

from baton.inputs import PromptType
from baton_core.errors import InvalidRequestError
from baton_core.prompt_embeds import ITEM_BYTES, PromptEmbeds
from baton_router.embeds.given_embeds import EmbedsLimits, EmbedsPrompt, PromptTokens, check_shape, placed

T = TypeVar("T")

_ALLOWED: Final = "text, token ids, or a dictionary with `prompt`, `prompt_token_ids` or `prompt_embeds`"
_KEYS: Final = ("prompt", "prompt_token_ids", "prompt_embeds", "cache_salt")
_REFUSED: Final = {
    "token_type_ids": "nothing, unless the model pools",
    "multi_modal_data": "nothing: models of text alone are supported yet",
    "multi_modal_uuids": "nothing: models of text alone are supported yet",
    "mm_processor_kwargs": "nothing: models of text alone are supported yet",
    "encoder_prompt": "nothing: models with an encoder are not supported",
    "decoder_prompt": "nothing: models with an encoder are not supported",
}
"""Keys of vLLM's prompts that nothing here uses, and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptParts:
    """One prompt: `token_ids` or `embeds` unless it still has to be tokenized."""

    text: str | None
    token_ids: tuple[int, ...] | None
    embeds: EmbedsPrompt | None = None
    cache_salt: str = ""
    type_one_from: int | None = None
    """Position of the first token of type 1; None: all are of type 0."""


def as_list(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    """One prompt or many: a list of token ids is one.

    Raises:
        InvalidRequestError: it is neither.
    """
    if isinstance(prompts, str | Mapping):
        return [cast(PromptType, prompts)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise InvalidRequestError("prompts", prompts, f"{_ALLOWED}, or a list of such")
    is_one = bool(prompts) and isinstance(prompts[0], int)
    return [cast(PromptType, prompts)] if is_one else list(cast(Sequence[PromptType], prompts))


def one_each(field: str, given: T | Sequence[T] | None, default: T, num_prompts: int) -> list[T]:
    """Values for all prompts: one for each, one for all, or the default.

    Raises:
        InvalidRequestError: a list has not as many as there are prompts.
    """
    if given is None:
        return [default] * num_prompts
    if not isinstance(given, Sequence):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise InvalidRequestError(
            field, f"a list of {len(given)}", f"a list of {num_prompts}, or one value for all"
        )
    return list(given)


def read_prompt(prompt: PromptType, *, takes_types: bool = False) -> PromptParts:
    """Take a prompt apart; only models that pool take types of tokens.

    Raises:
        InvalidRequestError: it is no prompt, or has parts that nothing here uses.
    """
    if isinstance(prompt, str):
        return PromptParts(text=_check_text(prompt), token_ids=None)
    if not isinstance(prompt, Mapping):
        return PromptParts(text=None, token_ids=_check_token_ids(prompt, prompt))
    given: dict[str, Any] = {key: value for key, value in prompt.items() if value is not None}
    types = given.pop("token_type_ids", None) if takes_types else None
    for key in given:
        if key in _REFUSED:
            raise InvalidRequestError(key, given[key], _REFUSED[key])
        if key not in _KEYS:
            raise InvalidRequestError("prompt", prompt, f"{_ALLOWED}, and `cache_salt`")
    if not given.keys() & {"prompt", "prompt_token_ids", "prompt_embeds"}:
        raise InvalidRequestError("prompt", prompt, _ALLOWED)
    text, token_ids = given.get("prompt"), given.get("prompt_token_ids")
    embeds = given.get("prompt_embeds")
    if embeds is not None and token_ids is not None:
        raise InvalidRequestError("prompt_token_ids", token_ids, "nothing beside prompt_embeds")
    return PromptParts(
        embeds=None if embeds is None else EmbedsPrompt(partial(_read_embeds, embeds)),
        text=None if text is None else _check_text(text),
        token_ids=None if token_ids is None else _check_token_ids(token_ids, prompt),
        cache_salt=given.get("cache_salt", ""),
        type_one_from=None if types is None else _first_of_type_one(types, token_ids),
    )


def _first_of_type_one(types: Any, token_ids: Any) -> int | None:
    """Return the position of the first 1 of zeros and then ones, one for each token; None without a 1."""
    if token_ids is None:
        raise InvalidRequestError("token_type_ids", types, "nothing without prompt_token_ids")
    values = list(types)
    if len(values) != len(token_ids):
        allowed = f"{len(token_ids)}, one for each of prompt_token_ids"
        raise InvalidRequestError("token_type_ids", f"{len(values)} numbers", allowed)
    first = values.index(1) if 1 in values else len(values)
    if any(values[:first]) or any(value != 1 for value in values[first:]):
        raise InvalidRequestError("token_type_ids", values, "zeros, and then ones")
    return None if first == len(values) else first


def _read_embeds(embeds: object, limits: EmbedsLimits) -> PromptTokens:
    """Return a prompt of the rows of a tensor.

    Raises:
        InvalidRequestError: it is no tensor that embeddings may be.
    """
    allowed = f"a dense tensor of {', '.join(ITEM_BYTES)}"
    if not isinstance(embeds, Tensor):
        raise InvalidRequestError("prompt_embeds", type(embeds).__name__, allowed)
    dtype = str(embeds.dtype).removeprefix("torch.")
    if embeds.layout is not torch.strided or dtype not in ITEM_BYTES or embeds.is_meta:
        raise InvalidRequestError("prompt_embeds", f"a {embeds.layout} of {dtype}", allowed)
    check_shape("prompt_embeds", tuple(embeds.shape), limits)
    rows = embeds.detach().to("cpu").contiguous()
    data = rows.view(torch.uint8).numpy().tobytes()
    return placed(PromptEmbeds.of(data, dtype=dtype, hidden_size=embeds.shape[-1]))


def _check_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidRequestError("prompt", text, _ALLOWED)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("prompt", text, "text that UTF-8 can hold") from None
    return text


def _check_token_ids(token_ids: object, prompt: PromptType) -> tuple[int, ...]:
    if isinstance(token_ids, bytes | bytearray) or not isinstance(token_ids, Sequence):
        raise InvalidRequestError("prompt", prompt, _ALLOWED)
    if not all(isinstance(token_id, int) for token_id in token_ids):
        raise InvalidRequestError("prompt", prompt, _ALLOWED)
    return tuple(token_ids)
