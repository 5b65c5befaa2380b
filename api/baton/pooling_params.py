"""`PoolingParams`: what is pooled of a prompt, under the names of vLLM's documented class."""

from __future__ import annotations

from copy import copy
from typing import Self

import msgspec

from baton.pydantic_fields import PydanticField
from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import PoolingModel, PoolingTask
from baton_router.requests.generation import PoolingRequest

_SCORE = "score"
"""The older name of `classify` on models that score pairs."""
TASKS = (*PoolingTask, _SCORE)


class PoolingParams(PydanticField, msgspec.Struct, dict=True):
    """How a prompt's hidden states are pooled.

    Raises:
        InvalidRequestError: a value is out of range.
    """

    use_activation: bool | None = None
    """Normalize embeddings, or turn class scores into probabilities; None is as the model's files say."""
    dimensions: int | None = None
    """The leading numbers to keep of an embedding, where the model allows that; None is all."""
    task: str | None = None
    """One of `TASKS`; None is chosen by the method, or the model's first."""

    def __post_init__(self) -> None:
        if self.use_activation not in (None, True, False):
            raise InvalidRequestError("use_activation", self.use_activation, "true, false or none")
        is_int = isinstance(self.dimensions, int) and not isinstance(self.dimensions, bool)
        if self.dimensions is not None and not (is_int and self.dimensions >= 1):
            raise InvalidRequestError("dimensions", self.dimensions, "an integer of at least 1, or none")
        if self.task is not None and self.task not in TASKS:
            raise InvalidRequestError("task", self.task, ", ".join(TASKS))

    def clone(self) -> Self:
        """Return a copy."""
        return copy(self)

    def with_task(self, task: str | None) -> Self:
        """Return a copy for a method's task.

        Raises:
            InvalidRequestError: there is no such task, or these parameters are for another one.
        """
        if task is not None and task not in TASKS:
            raise InvalidRequestError("pooling_task", task, ", ".join(TASKS))
        if task is not None and self.task is not None and _own(self.task) != _own(task):
            raise InvalidRequestError("task", self.task, f"{task}, as the method pools")
        other = self.clone()
        other.task = task or self.task
        return other

    def request(
        self, model: PoolingModel, type_one_from: int | None = None, truncation_side: str | None = None
    ) -> PoolingRequest:
        """Return what these parameters ask of a model."""
        return PoolingRequest(
            task=_own(self.task or model.tasks[0]),
            dimensions=self.dimensions,
            use_activation=self.use_activation,
            type_one_from=type_one_from,
            truncation_side=truncation_side or "right",
        )


def _own(task: str) -> PoolingTask:
    return PoolingTask.CLASSIFY if task == _SCORE else PoolingTask(task)
