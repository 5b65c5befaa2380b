"""Scores of pairs of texts: which texts belong together, what is read of a pair, and how close two are."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from operator import mul
from types import MappingProxyType
from typing import Any

from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import PoolingModel, PoolingTask
from baton_core.worker.step_plan import PooledValues
from baton_router.text.chat_template import Conversation
from baton_router.text.prompts import TextPair


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
