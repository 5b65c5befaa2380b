"""Why a request runs where it does: every candidate that was weighed, and what spoke for the one taken."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted cost of a placement, in seconds."""

    queue_s: float = 0.0
    """Prompts ahead of it."""
    prefill_s: float = 0.0
    """Computing what is not cached where the prompt is computed."""
    gap_s: float = 0.0
    """Between the first token and the second: the part of the transfer that prefill does not hide."""
    stall_s: float = 0.0
    """Time that the request adds to the sequences that run there, in all, times the weight of the stall."""
    affinity_s: float = 0.0
    """Added because the request's session, or its name, prefers other workers."""
    score_s: float = 0.0
    """Score of the candidate: the sum of the above, or the rank of a policy that does not compare seconds."""

    @property
    def ttft_s(self) -> float:
        """Until the first token."""
        return self.queue_s + self.prefill_s


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to place the request; `prefill` and `decode` are the same worker when it is not split."""

    prefill: str
    decode: str
    cost: Cost
    num_cached_tokens: int = 0
    """Cached tokens at the worker that would compute the prompt."""
    num_local_tokens: int = 0
    """Tokens of the prompt that the decode worker has already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One placement, or one try that found no place."""

    policy: str
    at_s: float
    """On the router's clock."""
    chosen: Candidate | None
    reason: str
    """One sentence for people."""
    candidates: tuple[Candidate, ...] = ()
    """The best first; no more than `MAX_CANDIDATES`."""
    num_candidates: int = 0
    """Number of all candidates."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Workers that were no candidates, each with the reason; as many at most."""


MAX_CANDIDATES = 8
"""Maximum number of candidates in a decision."""
