"""`LLMEngine.model_executor`: the path on which trainers of the same process give a vLLM new weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

NewWeights = dict[str, Tensor]


class GivenWeights:
    """The engine's model as a trainer sees it: something that takes weights.

    Args:
        replace: gives the engine all tensors of the checkpoint by their names.
    """

    def __init__(self, replace: Callable[[NewWeights], None]) -> None:
        self._replace = replace
        self._tensors: NewWeights = {}

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Take tensors under the names and shapes of the checkpoint, in as many calls as there are tensors.

        They are copied to the host's memory, and compute from the next request or call of the engine on.
        Returns their names.
        """
        given = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}
        self._tensors |= given
        return set(given)

    def apply(self) -> None:
        """Compute with the tensors that have come, if any.

        Raises:
            InvalidModelError: one is missing, has another shape or is not finite: all are dropped, and the
                old weights stay.
            RequestError: UNAVAILABLE, the engine sleeps without its weights; they are dropped, too.
        """
        if self._tensors:
            tensors, self._tensors = self._tensors, {}
            self._replace(tensors)


@dataclass(frozen=True, slots=True)
class ModelRunner:
    model: GivenWeights


@dataclass(frozen=True, slots=True)
class DriverWorker:
    model_runner: ModelRunner


@dataclass(frozen=True, slots=True)
class ModelExecutor:
    """vLLM's parts on the way to its model; Baton's workers are elsewhere, and may be several."""

    driver_worker: DriverWorker

    @classmethod
    def of(cls, model: GivenWeights) -> ModelExecutor:
        return cls(DriverWorker(ModelRunner(model)))
