"""What a load generator is given and what it gives back: requests with their times, answers with theirs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One request of an open-loop load."""

    at_s: float
    """When it arrives, from the start of the run."""
    token_ids: list[int]
    num_tokens: int
    """To generate, whatever they are."""
    session_id: str = ""
    """The conversation that it belongs to; empty where the router is not to know."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an arrival; times count from when it was due, not from when it was sent."""

    sent_s: float
    """How late it was sent."""
    times_s: list[float]
    """Of each token at the client."""
    token_ids: list[int]
    cached_tokens: int = 0
    """Prompt tokens whose blocks existed where the prompt was computed."""
    transferred_bytes: int = 0
    prefill_worker: str = ""
    decode_worker: str = ""
    error: str = ""
    """Why it has no whole answer."""

    @property
    def ttft_s(self) -> float:
        return self.times_s[0]

    @property
    def e2e_s(self) -> float:
        return self.times_s[-1]

    @property
    def gap_s(self) -> float | None:
        """Between the first token and the second: where a hand-over shows; None without a second one."""
        return self.times_s[1] - self.times_s[0] if len(self.times_s) > 1 else None

    @property
    def intervals_s(self) -> list[float]:
        """Between the tokens from the second one on."""
        return [after - before for before, after in pairwise(self.times_s[1:])]

    @property
    def is_split(self) -> bool:
        return bool(self.decode_worker) and self.prefill_worker != self.decode_worker


class Load(msgspec.Struct, frozen=True, kw_only=True):
    arrivals: list[Arrival]


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a load."""

    answers: list[Answer]
    """In the order of the arrivals."""
    wall_s: float
    """From the start to the last answer's end."""
    cpu_s: float
    """That the load generator spent meanwhile."""


def write(path: Path, value: msgspec.Struct) -> None:
    path.write_bytes(msgspec.msgpack.encode(value))


def read(path: Path, kind: type[S]) -> S:
    return msgspec.msgpack.decode(path.read_bytes(), type=kind)
