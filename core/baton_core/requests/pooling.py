"""Requests that pool a model's hidden states: embeddings, classes and scores in the place of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import msgspec

from baton_core.errors import InvalidRequestError


class PoolingTask(StrEnum):
    EMBED = "embed"
    """One vector for a prompt."""
    CLASSIFY = "classify"
    """One row of class scores for a prompt."""
    TOKEN_EMBED = "token_embed"  # noqa: S105
    """One vector for each token of a prompt."""
    TOKEN_CLASSIFY = "token_classify"  # noqa: S105
    """One row of class scores for each token of a prompt."""

    @property
    def is_embedding(self) -> bool:
        return self in (PoolingTask.EMBED, PoolingTask.TOKEN_EMBED)

    @property
    def is_per_token(self) -> bool:
        return self in (PoolingTask.TOKEN_EMBED, PoolingTask.TOKEN_CLASSIFY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSpec:
    """The task of one request that pools."""

    task: PoolingTask
    dimensions: int | None = None
    """The leading numbers to keep of an embedding; None is all."""
    use_activation: bool | None = None
    """Normalize embeddings, or turn class scores into probabilities; None is as the model's files say."""
    type_one_from: int | None = None
    """Position of the first prompt token of type 1, the second text of a pair; None: all are of type 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingModel:
    """The tasks that a model can pool. Workers of one fleet have equal ones."""

    tasks: tuple[PoolingTask, ...]
    whole_tasks: tuple[PoolingTask, ...] = ()
    """Tasks that need the hidden states of a whole prompt from one step: nothing of it comes from the prefix
    cache, and it is not computed in chunks."""
    embedding_size: int = 0
    """Numbers of an embedding; 0 without a task that embeds."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """The values that `dimensions` may have beside `embedding_size`."""
    is_matryoshka: bool = False
    """True if `dimensions` may have any value up to `embedding_size`, where none are listed."""
    labels: tuple[str, ...] = ()
    """Names of the classes; empty without a task that classifies."""
    has_token_types: bool = False
    """True if tokens of the second text of a pair are of type 1."""
    is_causal: bool = True
    """False for an encoder, whose tokens see the whole prompt: it has no KV cache."""

    @property
    def scores_by(self) -> PoolingTask | None:
        """The task that gives the score of a pair of texts: two embeddings, one class or two matrices."""
        if PoolingTask.CLASSIFY in self.tasks and len(self.labels) == 1:
            return PoolingTask.CLASSIFY
        for task in (PoolingTask.EMBED, PoolingTask.TOKEN_EMBED):
            if task in self.tasks:
                return task
        return None

    def way_to(self, task: PoolingTask | None) -> str:
        """Return the setting that loads the model for a task it lacks, if any; None is to generate."""
        if task is None:
            return "runner generate, if it has logits" if self.is_causal else ""
        if task.is_embedding == self.tasks[0].is_embedding:
            return ""
        return "convert embed" if task.is_embedding else "convert classify, if it has class scores"

    def needs_whole_prompt(self, task: PoolingTask) -> bool:
        return task in self.whole_tasks

    def result_bytes(self, spec: PoolingSpec, num_prompt_tokens: int) -> int:
        """Return the size of a result in float32."""
        size = spec.dimensions or self.embedding_size if spec.task.is_embedding else len(self.labels)
        return 4 * size * (num_prompt_tokens if spec.task.is_per_token else 1)

    def check(self, spec: PoolingSpec) -> None:
        """Refuse what the model cannot pool.

        Raises:
            InvalidRequestError: names the field, its value and what is allowed.
        """
        if spec.task not in self.tasks:
            raise self.lacks(spec.task)
        if spec.dimensions is not None:
            self._check_dimensions(spec.task, spec.dimensions)
        if spec.type_one_from is not None and not self.has_token_types:
            raise InvalidRequestError("token_type_ids", "ones", "zeros: this model has no token types")

    def lacks(self, task: PoolingTask | None) -> InvalidRequestError:
        """Return the error of a request for a task that the model lacks; None is to generate."""
        name, way = "generate" if task is None else task.value, self.way_to(task)
        hint = f"; for {name} load the model with {way}" if way else ""
        return InvalidRequestError("task", name, f"{', '.join(self.tasks)}{hint}")

    def _check_dimensions(self, task: PoolingTask, value: int) -> None:
        if not task.is_embedding:
            raise InvalidRequestError("dimensions", value, f"none with task {task.value}")
        size = self.embedding_size
        if value == size or value in self.matryoshka_dimensions:
            return
        if self.matryoshka_dimensions:
            allowed = ", ".join(map(str, sorted({*self.matryoshka_dimensions, size})))
        elif not self.is_matryoshka:
            allowed = f"{size}: this model has no Matryoshka embeddings"
        elif 1 <= value <= size:
            return
        else:
            allowed = f"1 to {size}"
        raise InvalidRequestError("dimensions", value, allowed)


def cannot_pool(task: str) -> InvalidRequestError:
    """Return the error of a request to pool, at a model that generates."""
    allowed = "generate: this model was loaded to generate; runner pooling loads it to pool"
    return InvalidRequestError("task", task, allowed)


def check_runner(model: PoolingModel | None, spec: PoolingSpec | None) -> None:
    """Refuse to generate with a model that pools, the other way round, and what the model cannot pool.

    Raises:
        InvalidRequestError: names the field, its value and what is allowed.
    """
    if spec is None:
        if model is not None:
            raise model.lacks(None)
    elif model is None:
        raise cannot_pool(spec.task.value)
    else:
        model.check(spec)


def encode_pooling_model(model: PoolingModel | None) -> str:
    """Return a text that equal models have alike; empty for None."""
    return "" if model is None else msgspec.json.encode(model).decode()


@lru_cache(maxsize=16)
def decode_pooling_model(text: str) -> PoolingModel | None:
    """Return the model of a text that `encode_pooling_model` made.

    Raises:
        msgspec.DecodeError: the text is of another version.
    """
    return msgspec.json.decode(text, type=PoolingModel) if text else None
