"""A trace of production as a dataset: its lengths, its arrivals, and prompts that share what its share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baton_bench.answers import BenchRequest
from baton_bench.token_source import TokenSource
from baton_core.errors import InvalidConfigError
from baton_simulator.capacity.trace import Scale, arrival_times, read_trace
from baton_simulator.capacity.trace_formats import MAX_ID, TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePrompts:
    """The first requests of a trace."""

    path: Path
    scale: Scale

    def sample(self, count: int, rng: random.Random, source: TokenSource) -> list[BenchRequest]:
        """Up to `count` requests, in the trace's order.

        Raises:
            InvalidConfigError: the file cannot be read, or is empty.
        """
        seed = rng.randrange(2**31)
        return [
            source.request(
                rng,
                prompt_tokens(request, self.scale, source.choices, seed),
                self.scale.num_output_tokens(request),
                self.scale.session_id(request),
            )
            for request in self._read(count)
        ]

    def arrival_times(self, count: int, rate: float | None) -> list[float]:
        """Seconds from the first of `count` requests to each; stretched to `rate` per second, if given.

        Requests that all came at once have even gaps then.
        """
        times = list(arrival_times(self._read(count), self.scale.speedup))
        times = [at_s - times[0] for at_s in times]
        if rate is None:
            return times
        if not times[-1]:
            return [number / rate for number in range(len(times))]
        stretch = (len(times) - 1) / rate / times[-1]
        return [at_s * stretch for at_s in times]

    def _read(self, count: int) -> list[TraceRequest]:
        requests = read_trace(self.path, count, self.scale.every)
        if not requests:
            raise InvalidConfigError(f"--dataset-path is {str(self.path)!r}; allowed: a trace with requests")
        return requests


def prompt_tokens(
    request: TraceRequest, scale: Scale, choices: Sequence[int], seed: int = 0
) -> tuple[int, ...]:
    """The prompt of a request: as many tokens for each id as it stands for, fewer for the last one.

    They are sampled from `choices`. Equal ids are equal tokens, other ids and other seeds other tokens.
    """
    tokens: list[int] = []
    for hash_id in request.hash_ids:
        rng = random.Random(seed * (MAX_ID + 1) + hash_id)
        tokens += rng.choices(choices, k=scale.id_tokens)
    return tuple(tokens[: scale.num_prompt_tokens(request)])
