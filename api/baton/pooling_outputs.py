"""Outputs of pooling: names and fields are those of vLLM's documented classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

OutputT = TypeVar("OutputT")


@dataclass
class PoolingOutput:
    """The result of pooling one prompt."""

    data: Any
    """A torch tensor, float32: the numbers of the prompt, or `[num_tokens, size]` of its tokens."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PoolingOutput) or self.data.shape != other.data.shape:
            return False
        return bool((self.data == other.data).all())

    __hash__ = None  # type: ignore[assignment]


@dataclass
class EmbeddingOutput:
    """One embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)

    @classmethod
    def from_base(cls, output: PoolingOutput) -> Self:
        """Read a pooled vector.

        Raises:
            ValueError: the data is no vector.
        """
        return cls(_vector(output, "encode with the task token_embed").tolist())


@dataclass
class ClassificationOutput:
    """Probabilities of the classes, or their scores where no activation is used."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)

    @classmethod
    def from_base(cls, output: PoolingOutput) -> Self:
        """Read a pooled vector.

        Raises:
            ValueError: the data is no vector.
        """
        return cls(_vector(output, "encode with the task token_classify").tolist())


@dataclass
class ScoringOutput:
    """The score of a pair of texts."""

    score: float

    @classmethod
    def from_base(cls, output: PoolingOutput) -> Self:
        """Read a pooled number.

        Raises:
            ValueError: there is more than one.
        """
        data = _vector(output, "a model that scores pairs")
        if data.numel() != 1:
            raise ValueError(f"the score is of shape {tuple(data.shape)}; allowed: one number")
        return cls(float(data.reshape(()).item()))


@dataclass
class PoolingRequestOutput(Generic[OutputT]):
    """One prompt and what was pooled of it."""

    request_id: str
    outputs: OutputT
    prompt_token_ids: list[int]
    num_cached_tokens: int
    """Prompt tokens that were not computed for this request."""
    finished: bool

    @classmethod
    def _with(cls, base: PoolingRequestOutput[Any], outputs: OutputT) -> Self:
        return cls(
            request_id=base.request_id,
            outputs=outputs,
            prompt_token_ids=base.prompt_token_ids,
            num_cached_tokens=base.num_cached_tokens,
            finished=base.finished,
        )


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """One prompt and its embedding."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> Self:
        return cls._with(base, EmbeddingOutput.from_base(base.outputs))


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """One prompt and its classes."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> Self:
        return cls._with(base, ClassificationOutput.from_base(base.outputs))


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """One pair of texts and its score."""

    @classmethod
    def from_base(cls, base: PoolingRequestOutput[PoolingOutput]) -> Self:
        return cls._with(base, ScoringOutput.from_base(base.outputs))


def _vector(output: PoolingOutput, instead: str) -> Any:
    if output.data.ndim > 1:
        raise ValueError(f"the data is of shape {tuple(output.data.shape)}; allowed: a vector; {instead}")
    return output.data
