"""Where a request runs: filter, score, pick, over a pure snapshot of the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from baton_core.worker_info import Role


class SplitMode(StrEnum):
    AUTO = "auto"
    """Split when a prefill worker exists and enough of the prompt has to be computed."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    split: SplitMode = SplitMode.AUTO
    min_split_tokens: int = 256
    """Uncached prompt tokens from which `auto` splits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as one request sees it."""

    worker_id: str
    role: Role
    num_cached_tokens: int
    """Prompt tokens of this request whose blocks it holds."""
    num_queued_tokens: int
    """Prompt tokens given to it that are not computed yet."""
    num_sequences: int
    """Sequences given to it that have not ended."""
    can_reserve: bool
    """Whether it has room for the prompt's blocks while they arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`prefill` and `decode` are the same worker when the request is not split."""

    prefill: str
    decode: str
    reason: str

    @property
    def is_split(self) -> bool:
        return self.prefill != self.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaceable:
    """No worker can take the request; `is_permanent` until another worker joins."""

    reason: str
    is_permanent: bool


def place(
    num_prompt_tokens: int,
    workers: Sequence[WorkerView],
    config: PlacementConfig,
    excluded: frozenset[str] = frozenset(),
) -> Placement | Unplaceable:
    """Choose workers for a prompt; `excluded` are those that have just refused it."""
    if not any(view.role.can_decode for view in workers):
        return Unplaceable(reason="no decode worker is registered", is_permanent=True)
    decoder = pick_decoder(workers, excluded)
    if decoder is None:
        return Unplaceable(reason="every decode worker is full", is_permanent=False)
    num_uncached = num_prompt_tokens - decoder.num_cached_tokens
    prefillers = [view for view in workers if view.role.can_prefill and view.worker_id != decoder.worker_id]
    if not _is_split_wanted(num_uncached, config) or (not prefillers and config.split is SplitMode.AUTO):
        reason = f"{num_uncached} uncached tokens, split={config.split}"
        return Placement(prefill=decoder.worker_id, decode=decoder.worker_id, reason=reason)
    if not prefillers:
        return Unplaceable(reason="no prefill worker is registered", is_permanent=True)
    return _split(workers, pick_decoder(workers, excluded, can_reserve=True), excluded)


def pick_decoder(
    workers: Sequence[WorkerView], excluded: frozenset[str], *, can_reserve: bool = False
) -> WorkerView | None:
    """The decode worker with the longest cached prefix, then the fewest sequences, then by name."""
    candidates = [
        view
        for view in workers
        if view.role.can_decode and view.worker_id not in excluded and (view.can_reserve or not can_reserve)
    ]
    return min(candidates, key=_decode_order, default=None)


def _split(
    workers: Sequence[WorkerView], decoder: WorkerView | None, excluded: frozenset[str]
) -> Placement | Unplaceable:
    if decoder is None:
        return Unplaceable(reason="no decode worker has room for the prompt", is_permanent=False)
    names = excluded | {decoder.worker_id}
    candidates = [view for view in workers if view.role.can_prefill and view.worker_id not in names]
    prefiller = min(candidates, key=_prefill_order, default=None)
    if prefiller is None:
        return Unplaceable(reason="every prefill worker is full", is_permanent=False)
    reason = f"split: {decoder.num_cached_tokens} tokens cached at the decode worker"
    return Placement(prefill=prefiller.worker_id, decode=decoder.worker_id, reason=reason)


def _is_split_wanted(num_uncached: int, config: PlacementConfig) -> bool:
    match config.split:
        case SplitMode.NEVER:
            return False
        case SplitMode.ALWAYS:
            return num_uncached > 1
        case SplitMode.AUTO:
            return num_uncached >= config.min_split_tokens


def _prefill_order(view: WorkerView) -> tuple[int, int, bool, str]:
    return (-view.num_cached_tokens, view.num_queued_tokens, view.role is Role.MIXED, view.worker_id)


def _decode_order(view: WorkerView) -> tuple[int, int, bool, str]:
    return (-view.num_cached_tokens, view.num_sequences, view.role is Role.MIXED, view.worker_id)
