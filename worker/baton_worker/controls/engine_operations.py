"""The operations that operators run on the engines of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import SLEEP_LEVELS, EnginePart
from baton_core.sessions.weight_arguments import require_checkpoint_format

WAKE_UP_TAGS: Final = tuple(EnginePart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Stop computing. Level 1 gives up the KV cache and keeps the weights in the host's memory, 2 gives up
    both."""

    level: int = 1

    def __post_init__(self) -> None:
        if self.level not in SLEEP_LEVELS:
            raise InvalidRequestError("level", self.level, ", ".join(map(str, SLEEP_LEVELS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """Take back what `Sleep` gave up; no tags means all of it. Answered with whether it still sleeps."""

    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for tag in self.tags:
            if tag not in WAKE_UP_TAGS:
                raise InvalidRequestError("tags", tag, ", ".join(WAKE_UP_TAGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPrefixCache:
    """Forget every cached block; answered with whether it was done, which needs that no request is open."""

    preempts: bool = False
    """Takes the blocks of open requests too, which then compute their tokens again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyModel:
    """Call a function with each worker's model, as an `nn.Module`."""

    function: Callable[..., Any] | str
    """Or its dotted name, `package.module:function`."""
    timeout_s: float | None = None
    """As that of `CallWorker`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWorker:
    """Call a method of each worker's runner, or a function with the runner as its first argument."""

    method: Callable[..., Any] | str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    """For workers in other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Begin or end a trace of what the workers do."""

    is_start: bool
    folder: str = ""
    """Folder of the trace; workers in other processes have their own."""
    prefix: str = ""
    """Prefix of its file's name."""

    def __post_init__(self) -> None:
        if "/" in self.prefix or not (self.prefix.isprintable() and len(self.prefix) <= 100):
            raise InvalidRequestError("profile_prefix", self.prefix, "at most 100 characters, none of them /")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckWeights:
    """Read a new version of the weights without loading it; answered with its hash."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchWeights:
    """Load the version that was checked; answered with its hash."""

    path: str
    weights: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAdapter:
    """Find out whether a LoRA adapter fits the model, without keeping it."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinAdapters:
    """Keep the LoRA adapters of these ids loaded, and no longer those that were pinned before."""

    numbers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWeightUpdate:
    """Begin an update of the weights."""

    is_checkpoint_format: bool = True

    def __post_init__(self) -> None:
        require_checkpoint_format(self.is_checkpoint_format)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateWeights:
    """Check a new version at every worker; answered with its hash."""

    path: str
    """Folder of the weight files, as every worker sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishWeightUpdate:
    """Have every worker load the version that was checked last; answered with its hash."""


WeightUpdateStep: TypeAlias = StartWeightUpdate | UpdateWeights | FinishWeightUpdate
"""The steps of an update, which a router or the executor in this process takes with its workers."""
EngineOperation: TypeAlias = (
    Sleep | WakeUp | ApplyModel | CallWorker | Profile | CheckWeights | SwitchWeights | CheckAdapter
)
"""Runs on one engine."""
Control: TypeAlias = (
    Sleep | WakeUp | ResetPrefixCache | ApplyModel | CallWorker | Profile | PinAdapters | WeightUpdateStep
)
"""Runs an operation on all workers; returns one value from each."""
