"""Runs the prompts of one call that pools, and collects their results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.pooling import PoolingModel, PoolingTask
from baton_core.worker.step_plan import PooledValues
from baton_router.http.calls import Call, read_context
from baton_router.http.chat.request import read_messages
from baton_router.http.chat.schemas import ChatMessage
from baton_router.http.generation import collect, generating
from baton_router.http.pooling.schemas import PoolingFields, PoolingUsage, PromptFields
from baton_router.requests.generation import Finished, GenerationRequest, PoolingRequest
from baton_router.requests.pooling import lacks_task
from baton_router.requests.request_reader import MAX_REQUEST_ID_CHARACTERS
from baton_router.text.prompts import Prompt, TextPair

MAX_PROMPTS: Final = 2048
"""Prompts of one call."""


class ListReply(msgspec.Struct, kw_only=True):
    """A reply with an item for each prompt, or each pair."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Any]
    usage: PoolingUsage


ReplyT = TypeVar("ReplyT", bound=ListReply)


def pooled_model(call: Call[Any]) -> PoolingModel:
    """Return what the served model pools.

    Raises:
        InvalidRequestError: the model generates.
        RequestError: UNAVAILABLE, no worker is there to tell; or NOT_FOUND, no model has that name.
    """
    fleet = call.state.service.router.fleet
    if fleet.identity is None:
        raise RequestError(ErrorCode.UNAVAILABLE, call.state.service.why_not_ready or "no worker is there")
    if fleet.pooling is None:
        allowed = "a model that pools: this one generates, unless workers run with --runner pooling"
        service, model = call.state.service, call.body.model
        service.adapters.find(model or "")
        raise InvalidRequestError("model", model or service.model_names[0], allowed)
    return fleet.pooling


def read_prompts(body: PromptFields) -> list[Prompt]:
    """Return the prompts of a body.

    Raises:
        InvalidRequestError: there is none, or there are too many; the message names the field.
    """
    if (body.input is None) == (body.messages is None):
        raise InvalidRequestError("input", body.input, "one of input and messages")
    if body.add_generation_prompt is None:
        body.add_generation_prompt = False
    given: Any = body.messages if body.input is None else body.input
    if not given and given != "":
        raise InvalidRequestError("input", given, "a text, token ids, or a list of either")
    field = _field(body)
    if isinstance(given, str) or isinstance(given[0], int | ChatMessage):
        return [_read_prompt(body, given, field)]
    return [_read_prompt(body, item, f"{field}[{index}]") for index, item in enumerate(given)]


def _field(fields: PoolingFields) -> str:
    """Return the field that has the prompts of a body."""
    return "messages" if isinstance(fields, PromptFields) and fields.messages is not None else "input"


def _read_prompt(
    body: PromptFields, given: str | int | ChatMessage | list[int | ChatMessage], field: str
) -> Prompt:
    """Return a text, token ids or a conversation."""
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        ids = [item for item in given if isinstance(item, int)]
        messages = [item for item in given if isinstance(item, ChatMessage)]
        if len(ids) == len(given):
            return tuple(ids)
        if len(messages) == len(given):
            return read_messages(body, messages, field)
    raise InvalidRequestError(field, "items of several kinds", "texts, lists of token ids, or conversations")


def fields_of(name: str, num_prompts: int) -> list[str]:
    """Return the fields that errors name for the prompts of one field: places in it where it has several.

    Raises:
        InvalidRequestError: there are too many prompts.
    """
    _check_number(name, num_prompts)
    return [name] if num_prompts == 1 else [f"{name}[{index}]" for index in range(num_prompts)]


def _check_number(field: str, num_prompts: int) -> None:
    if num_prompts > MAX_PROMPTS:
        raise InvalidRequestError(field, f"{num_prompts} prompts", f"at most {MAX_PROMPTS}")


async def pool(
    call: Call[Any],
    fields: PoolingFields,
    prompts: Sequence[Prompt | TextPair],
    pooling: PoolingRequest,
    names: Sequence[str] = (),
) -> tuple[list[PooledValues], list[Finished]]:
    """Pool each prompt; returns the results and the ends, in the order of the prompts.

    `names` are the fields that errors name, one for each prompt; without them it is that of the prompts.

    Raises:
        InvalidRequestError: a field is out of range, or the model lacks the task; the message names it.
        RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, DEADLINE_EXCEEDED, or CANCELLED by a disconnect.
    """
    model, task = pooled_model(call), pooling.task
    if task not in model.tasks and not hasattr(fields, "task"):
        raise lacks_task(call.state.service.model_names[0], model, f"has the task {task}", task)
    names = names or fields_of(_field(fields), len(prompts))
    _check_number(names[-1].partition("[")[0], len(prompts))
    if fields.normalize is not None:
        raise InvalidRequestError("normalize", fields.normalize, "nothing: use_activation says it")
    requests = _requests(call, fields, prompts, pooling, names)
    async with generating(call, requests) as generation:
        del requests
        collected = await collect(generation, call.state.share)
    ends = [one.finished for one in collected]
    finished = [end for end in ends if end is not None]
    return [end.pooled for end in finished if end.pooled is not None], finished


def _requests(
    call: Call[Any],
    fields: PoolingFields,
    prompts: Sequence[Prompt | TextPair],
    pooling: PoolingRequest,
    names: Sequence[str],
) -> list[GenerationRequest]:
    name = call.name.adopt(fields.request_id)
    stem = name[: MAX_REQUEST_ID_CHARACTERS - 8]
    context = read_context(call, fields.session_id, None)
    adds_special = fields.add_special_tokens if isinstance(fields, PromptFields) else None
    return [
        GenerationRequest(
            prompt=prompt,
            prompt_field=prompt_field,
            model=fields.model or "",
            request_id=name if len(prompts) == 1 else f"{stem}-{number}",
            cache_salt=fields.cache_salt or "",
            priority=fields.priority or 0,
            add_special_tokens=adds_special,
            truncate_prompt_tokens=fields.truncate_prompt_tokens,
            context=context,
            pooling=pooling,
        )
        for number, (prompt, prompt_field) in enumerate(zip(prompts, names, strict=True))
    ]


def task_request(fields: PoolingFields, task: PoolingTask, dimensions: int | None = None) -> PoolingRequest:
    """Return what is pooled of each prompt of a body."""
    return PoolingRequest(
        task=task,
        dimensions=dimensions,
        use_activation=fields.use_activation,
        truncation_side=fields.truncation_side or "right",
    )


def usage_of_prompts(ends: Iterable[Finished]) -> PoolingUsage:
    """Return the tokens of all prompts."""
    num_tokens = sum(end.num_prompt_tokens for end in ends)
    return PoolingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)


def list_reply(
    kind: type[ReplyT], call: Call[Any], prefix: str, items: list[Any], ends: Iterable[Finished]
) -> ReplyT:
    """Return the reply with these items; `prefix` begins its id."""
    return kind(
        id=f"{prefix}-{call.request_id}",
        created=int(time.time()),
        model=call.body.model or call.state.service.model_names[0],
        data=items,
        usage=usage_of_prompts(ends),
    )
