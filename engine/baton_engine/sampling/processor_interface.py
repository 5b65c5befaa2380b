"""The interface of logits processors that are classes, as vLLM documents it, and what it tells them.

Such a class changes the logits of every request of a batch. It is told which requests come and go, and keeps
what it needs of them by their index. A request that was preempted or has come from another worker is added
with the output that it has: state that follows from parameters, prompt and output is the same everywhere.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from baton_core.requests.sampling_params import SamplingParams

RemovedRequest: TypeAlias = int
"""The index of a request that is gone."""
AddedRequest: TypeAlias = tuple[int, SamplingParams, list[int] | None, list[int]]
"""Index, parameters, prompt and output of a new request; the list of the output grows with it."""


class MoveDirectionality(Enum):
    """Kinds of moves."""

    UNIDIRECTIONAL = auto()
    """The request at the first index moves to the second one."""
    SWAP = auto()
    """Both change places; Baton tells of no such move."""


MovedRequest: TypeAlias = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """Changes of a batch, to be processed in this order: removed, added, moved.

    An added or moved request takes the place of the one that had its index.
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """A logits processor of all requests, to be derived from; a class with these methods will do as well."""

    @classmethod  # noqa: B027  # most check nothing
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check the parameters of a new request.

        Raises:
            ValueError: they cannot hold; the request is refused.
        """

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits `[batch_size, vocab_size] float32`, row by row in the order of the indices.

        They may be changed in place.
        """

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Return True if it never changes which token is the most likely one.

        Greedy requests do without such a one. It sees logits after the temperature, the others before
        penalties.
        """

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take the changes before each `apply`; None where no request has come or gone."""


State = TypeVar("State")


def process_dict_updates(
    req_entries: dict[int, State],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], State | None],
) -> bool:
    """Follow the requests of a batch in a dictionary of states by index; returns True if it has changed.

    Args:
        new_state: makes the state of a new request of its parameters, prompt and output; None for none.
    """
    if batch_update is None:
        return False
    changes = [req_entries.pop(index, None) for index in batch_update.removed]
    for index, params, prompt, output in batch_update.added:
        state = new_state(params, prompt, output)
        changes += [req_entries.pop(index, None), state]
        if state is not None:
            req_entries[index] = state
    for source, target, direction in batch_update.moved:
        moved, replaced = req_entries.pop(source, None), req_entries.pop(target, None)
        changes += [moved, replaced]
        if moved is not None:
            req_entries[target] = moved
        if direction is MoveDirectionality.SWAP and replaced is not None:
            req_entries[source] = replaced
    return any(change is not None for change in changes)


class AdapterLogitsProcessor(LogitsProcessor):
    """Applies a function of its own to each request.

    The function takes `(output_token_ids, logits)` or `(prompt_token_ids, output_token_ids, logits)`.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Callable[[Tensor], Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Tensor] | None:
        """Return the function of a new request; None for none."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests."""
        process_dict_updates(self.req_info, batch_update, self._function_of)

    def _function_of(
        self, params: SamplingParams, prompt: list[int] | None, output: list[int]
    ) -> Callable[[Tensor], Tensor] | None:
        if (function := self.new_req_logits_processor(params)) is None:
            return None
        takes_prompt = len(inspect.signature(function).parameters) == 3
        return partial(function, *((prompt, output) if takes_prompt else (output,)))

    def apply(self, logits: Tensor) -> Tensor:
        """Apply each function to its row."""
        for index, function in self.req_info.items():
            logits[index] = function(logits[index])
        return logits
