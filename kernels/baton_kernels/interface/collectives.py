"""What ranks that compute one model together exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class RankLostError(Exception):
    """A peer died, or did not come within the deadline."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} is lost: {reason}")
        self.rank = rank


class Collectives(ABC):
    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def all_gather(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def gather(self, x: Tensor, to: int) -> Tensor | None: ...

    @abstractmethod
    def broadcast(self, x: Tensor, source: int) -> Tensor: ...

    @abstractmethod
    def send(self, x: Tensor, to: int) -> None: ...

    @abstractmethod
    def receive(self, x: Tensor, source: int) -> Tensor: ...

    @abstractmethod
    def barrier(self) -> None: ...

    def close(self) -> None: ...


class Alone(Collectives):
    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x[None]

    def gather(self, x: Tensor, to: int) -> Tensor | None:
        return x[None]

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return x

    def send(self, x: Tensor, to: int) -> None:
        raise AssertionError

    def receive(self, x: Tensor, source: int) -> Tensor:
        raise AssertionError

    def barrier(self) -> None: ...
