"""The links between the ranks of a group: who exchanges tensors with whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from baton_core.ranks.rank_layout import RankPlace
from baton_core.worker.step_plan import StepPlan
from baton_engine.ranks.ranks import Ranks, nobody
from baton_kernels.cpu.shared_collectives import SharedCollectives
from baton_kernels.interface.collectives import Alone, Collectives

WITHIN_S: Final = 60.0
"""Time for a rank to come to an exchange: the others may compute a long prompt meanwhile."""


def open_links(place: RankPlace, name: str, announce: Callable[[StepPlan], None] = nobody) -> Ranks:
    """Link a rank of this machine to the others of its group, which all have the same `name`.

    Returns once all of them are linked.

    Raises:
        RankLostError: another one does not come.
    """
    sizes = place.sizes
    return Ranks(
        place=place,
        tensor=_open(f"{name}-stage{place.stage}", place.tensor_rank, sizes.tensor),
        pipeline=_open(f"{name}-line{place.tensor_rank}", place.stage, sizes.pipeline),
        whole=_open(f"{name}-group", place.rank, sizes.num_ranks),
        announce=announce,
    )


def _open(name: str, rank: int, size: int) -> Collectives:
    return Alone() if size == 1 else SharedCollectives(name, rank, size, deadline_s=WITHIN_S)
