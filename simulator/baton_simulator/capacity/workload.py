"""The requests of clients by time: prompts that share as many tokens as the trace's requests share ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from baton_core.errors import InvalidConfigError
from baton_simulator.capacity.trace import Scale, arrival_times
from baton_simulator.capacity.trace_formats import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. Its prompt is made when it is sent: those of a long trace would fill the memory."""

    name: str
    at_s: float
    """Time at which the client sends it."""
    num_prompt_tokens: int
    num_tokens: int
    """To generate, whatever they are."""
    hash_ids: tuple[int, ...]
    """Ids of the prompt: one for each `id_tokens` tokens begun."""
    id_tokens: int
    session_id: str = ""

    def prompt_token_ids(self) -> tuple[int, ...]:
        """Equal ids are equal tokens, different ones different tokens."""
        tokens = chain.from_iterable(repeat(hash_id, self.id_tokens) for hash_id in self.hash_ids)
        return tuple(tokens)[: self.num_prompt_tokens]


def make_workload(requests: Sequence[TraceRequest], scale: Scale) -> list[Ask]:
    """Return the requests in the order of arrival.

    Raises:
        InvalidConfigError: nothing is.
    """
    if not requests:
        raise InvalidConfigError("trace has no requests; allowed: at least one that is kept")
    return [
        Ask(
            name=f"request-{number}",
            at_s=at_s,
            num_prompt_tokens=scale.num_prompt_tokens(request),
            num_tokens=scale.num_output_tokens(request),
            hash_ids=tuple(request.hash_ids),
            id_tokens=scale.id_tokens,
            session_id=scale.session_id(request),
        )
        for number, (at_s, request) in enumerate(
            zip(arrival_times(requests, scale.speedup), requests, strict=True)
        )
    ]
