"""What the Python interface generates with: everything in this process, or processes of their own.

Both kinds answer the same three verbs, so `LLM` and `LLMEngine` know one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from baton_core.errors import BatonError, InvalidRequestError
from baton_core.sessions.control_messages import SLEEP_LEVELS, EnginePart
from baton_core.sessions.router_messages import RequestSpec
from baton_router.generation import GenerationEvent

SLEEP_MODES: Final = ("abort", "wait", "keep")
"""What becomes of the requests that are open."""
WAKE_UP_TAGS: Final = tuple(EnginePart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Stop computing. Level 1 gives up the KV cache and keeps the weights in the host's memory, 2 gives up
    both."""

    level: int = 1

    def __post_init__(self) -> None:
        if self.level not in SLEEP_LEVELS:
            raise InvalidRequestError("level", self.level, ", ".join(map(str, SLEEP_LEVELS)))

    def check_mode(self, mode: str) -> None:
        """Refuse what cannot become of open requests: without their blocks they cannot be kept.

        Raises:
            InvalidRequestError: naming what can.
        """
        allowed = SLEEP_MODES if self.level == 0 else SLEEP_MODES[:2]
        if mode not in allowed:
            raise InvalidRequestError("mode", mode, ", ".join(allowed))


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
    """Forget every cached block; answered with whether it was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyModel:
    """Call a function with each worker's model."""

    function: Callable[..., Any] | str
    """Or its dotted name, `package.module:function`."""


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
    """Where the trace is written; workers in other processes have their own."""
    prefix: str = ""
    """What the name of its file begins with."""

    def __post_init__(self) -> None:
        if "/" in self.prefix or not (self.prefix.isprintable() and len(self.prefix) <= 100):
            raise InvalidRequestError("profile_prefix", self.prefix, "at most 100 characters, none of them /")


Control: TypeAlias = Sleep | WakeUp | ResetPrefixCache | ApplyModel | CallWorker | Profile
"""What an operator asks of the workers; answered with one value from each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLoad:
    """What all workers together do now."""

    num_running: int = 0
    """Sequences."""
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    """Share of the blocks that are in use: 0 to 1."""


ClusterEvent: TypeAlias = GenerationEvent | BatonError
"""Of one request; an error ends it as `Finished` does."""


class Cluster(Protocol):
    """Used by one thread at a time."""

    max_model_len: int

    def submit(self, spec: RequestSpec) -> None:
        """Take a request; its events come with the steps.

        Raises:
            RequestError: UNAVAILABLE, the cluster sleeps.
        """
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests, of which nothing more is said; those that are over or unknown are passed over."""
        ...

    def step(self) -> list[tuple[str, ClusterEvent]]:
        """Go on with the open requests; each event comes under its request's id."""
        ...

    def control(self, command: Control) -> list[Any]:
        """Do what an operator asks; returns each worker's answer.

        Raises:
            InvalidRequestError: it cannot be done here; the message names the field.
        """
        ...

    def load(self) -> ClusterLoad: ...

    def close(self) -> None: ...
