"""How the ranks of a group divide one model between them. Pure: engines and transfers follow the same rules.

A group has `pipeline * tensor` ranks. Ranks of one pipeline stage hold the same layers and different heads;
they are numbered one after the other. The group's leader is the first rank of the last stage: there are the
logits, so there tokens are sampled, and there is the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

NUM_SUMS: Final = 8
"""Parts of each sum over inputs that ranks may divide, where all sizes are to have the same bits."""


class ExpertPlacement(StrEnum):
    """How the ranks of a stage divide the experts of a mixture."""

    CUT = "cut"
    """Each rank has a part of every expert's inner dimension."""
    LINEAR = "linear"
    """Each rank has whole experts, neighbours in their order; the first ranks may have one more."""
    ROUND_ROBIN = "round_robin"
    """Each rank has whole experts, dealt out in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSizes:
    """The numbers of parts that a model is divided into."""

    tensor: int = 1
    """Parts of each layer."""
    pipeline: int = 1
    """Stages: runs of layers."""
    stages: tuple[int, ...] = ()
    """Layers of each stage; empty divides them evenly."""
    experts: ExpertPlacement = ExpertPlacement.CUT
    is_invariant: bool = False
    """Add sums over inputs up in `NUM_SUMS` parts: bits are those of every other tensor-parallel size."""

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def leader(self) -> int:
        """Rank of the leader."""
        return self.tensor * (self.pipeline - 1)

    @property
    def leader_first(self) -> tuple[int, ...]:
        """All ranks in the order in which machines take them, the leader's machine first."""
        return (*range(self.leader, self.num_ranks), *range(self.leader))

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """Return the ranks with the layers of a stage."""
        return tuple(range(stage * self.tensor, (stage + 1) * self.tensor))

    def tensor_ranks(self, tensor_rank: int) -> tuple[int, ...]:
        """Return the ranks with that part of each layer, by stage."""
        return tuple(range(tensor_rank, self.num_ranks, self.tensor))

    def of_node(self, nnodes: int, node_rank: int) -> tuple[int, ...]:
        """Return the ranks of one of several machines, whose number divides that of the ranks."""
        num_local = self.num_ranks // nnodes
        return self.leader_first[node_rank * num_local : (node_rank + 1) * num_local]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank among those that compute a model together."""

    sizes: ParallelSizes = field(default_factory=ParallelSizes)
    rank: int = 0

    @property
    def tensor_rank(self) -> int:
        """Number of its part of each layer."""
        return self.rank % self.sizes.tensor

    @property
    def stage(self) -> int:
        """Number of its stage."""
        return self.rank // self.sizes.tensor

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.sizes.pipeline - 1

    @property
    def is_leader(self) -> bool:
        return self.rank == self.sizes.leader

    def part(self, total: int) -> range:
        """Return its share of `total` things, which are a multiple of the tensor-parallel size."""
        size = total // self.sizes.tensor
        return range(self.tensor_rank * size, (self.tensor_rank + 1) * size)

    def experts(self, num_experts: int) -> range:
        """Return the experts of which it holds something: all that are cut, else its own."""
        if self.sizes.experts is ExpertPlacement.CUT:
            return range(num_experts)
        if self.sizes.experts is ExpertPlacement.ROUND_ROBIN:
            return range(self.tensor_rank, num_experts, self.sizes.tensor)
        least, left = divmod(num_experts, self.sizes.tensor)
        start = self.tensor_rank * least + min(self.tensor_rank, left)
        return range(start, start + least + (self.tensor_rank < left))

    def kv_heads(self, num_kv_heads: int) -> range:
        """Return the KV heads that it holds: its share, or one that several ranks hold."""
        if num_kv_heads >= self.sizes.tensor:
            return self.part(num_kv_heads)
        head = self.tensor_rank // (self.sizes.tensor // num_kv_heads)
        return range(head, head + 1)

    def tokens(self, vocab_size: int) -> range:
        """Return its part of the vocabulary; the last ones may be smaller."""
        size = -(-vocab_size // self.sizes.tensor)
        start = min(self.tensor_rank * size, vocab_size)
        return range(start, min(start + size, vocab_size))

    def layers(self, num_layers: int) -> range:
        """Return the layers of its stage."""
        if self.sizes.stages:
            start = sum(self.sizes.stages[: self.stage])
            return range(start, start + self.sizes.stages[self.stage])
        return stage_layers(num_layers, self.sizes.pipeline)[self.stage]


def stage_layers(num_layers: int, num_stages: int) -> tuple[range, ...]:
    """Divide layers into stages of equal length.

    One layer more goes to each of the stages before the last as far as there are layers left: the last one
    computes the logits too.
    """
    least, left = divmod(num_layers, num_stages)
    lengths = [least + (num_stages - 2 - stage in range(left)) for stage in range(num_stages)]
    starts = [sum(lengths[:stage]) for stage in range(num_stages)]
    return tuple(range(start, start + length) for start, length in zip(starts, lengths, strict=True))
