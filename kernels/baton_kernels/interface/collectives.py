"""The exchanges between ranks: processes that compute one model together.

All ranks of a group make the same calls in the same order, with tensors of the same shape and dtype. Every
wait has a deadline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class RankLostError(Exception):
    """Another rank did not come: it is dead, stopped or too late."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} is lost: {reason}")
        self.rank = rank


class Collectives(ABC):
    """One rank's exchanges with the others of a group; a rank is its number in that group.

    Each call raises RankLostError where another rank does not come.
    """

    rank: int
    size: int
    is_capturable = False
    """True if its calls are part of a captured step, and made again by each replay."""

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' `x`: added in float32 in the order of the ranks, then rounded once.

        So all ranks get the same bits, whatever else `x` holds. May overwrite `x` and return it.
        """

    @abstractmethod
    def all_gather(self, x: Tensor) -> Tensor:
        """Return `[size, *x.shape]`: what each rank gave, by rank."""

    @abstractmethod
    def gather(self, x: Tensor, to: int) -> Tensor | None:
        """Return at rank `to` what `all_gather` does, and None at the others."""

    @abstractmethod
    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Return what rank `source` gave."""

    @abstractmethod
    def send(self, x: Tensor, to: int) -> None:
        """Give a tensor to a rank that receives it; `x` may be overwritten afterwards."""

    @abstractmethod
    def receive(self, x: Tensor, source: int) -> Tensor:
        """Fill a contiguous `x` with what rank `source` sends, and return it."""


class Alone(Collectives):
    """The only rank of a group."""

    rank = 0
    size = 1
    is_capturable = True

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x[None]

    def gather(self, x: Tensor, to: int) -> Tensor | None:
        return x[None]

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return x

    def send(self, x: Tensor, to: int) -> None:
        raise AssertionError("there is nobody to send to")

    def receive(self, x: Tensor, source: int) -> Tensor:
        raise AssertionError("there is nobody who sends")
