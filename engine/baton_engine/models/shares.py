"""The share of a layer that one of several ranks computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from baton_core.ranks.rank_layout import NUM_SUMS, ExpertPlacement
from baton_engine.checkpoint.weights import Part
from baton_engine.ranks.ranks import Ranks
from baton_kernels.interface.collectives import Alone, Collectives

Layer = Callable[[Tensor], Tensor]
_ALONE: Final = Alone()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Some outputs of each kind of a linear layer, or the part of all outputs that some inputs make."""

    outputs: tuple[range, ...] | None = None
    """The outputs of each kind, counted from the first of its kind; None is all."""
    inputs: range | None = None
    """None is all."""
    ranks: Collectives = _ALONE
    """The ranks with the other inputs."""

    @property
    def is_whole(self) -> bool:
        return self.outputs is None and self.inputs is None

    def by_output(self, number: int) -> list[Share]:
        """Return the share of each of so many layers whose outputs lie side by side."""
        if self.outputs is None:
            return [self] * number
        return [Share(outputs=(one,)) for one in self.outputs]

    @property
    def columns(self) -> Part | None:
        return None if self.inputs is None else Part(1, self.inputs)


WHOLE: Final = Share()


def share_of_outputs(ranks: Ranks, *outputs: range) -> Share:
    """Return a rank's share of a layer whose outputs are divided."""
    return WHOLE if ranks.place.sizes.tensor == 1 else Share(outputs=outputs)


def share_of_inputs(ranks: Ranks, inputs: range) -> Share:
    """Return a rank's share of a layer whose inputs are divided: its outputs are to be `summed`."""
    return WHOLE if ranks.place.sizes.tensor == 1 else Share(inputs=inputs, ranks=ranks.tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """The experts of a layer that a rank holds, or its part of each: their outputs are to be added up."""

    numbers: range
    inner: range | None = None
    """Its part of each expert's inner outputs; None is all."""
    has_bias: bool = True
    """True if it adds the biases of the outputs."""
    ranks: Collectives = _ALONE
    """The ranks with the other parts."""

    @property
    def rows(self) -> Share:
        """The part of a projection to the inner outputs of gate and up."""
        return WHOLE if self.inner is None else Share(outputs=(self.inner, self.inner))

    @property
    def columns(self) -> Share:
        """The part of a projection from the inner outputs."""
        return WHOLE if self.inner is None else Share(inputs=self.inner, ranks=self.ranks)


def share_of_experts(ranks: Ranks, num_experts: int, intermediate_size: int) -> ExpertShare:
    """Return a rank's share of the experts of a layer."""
    numbers = ranks.place.experts(num_experts)
    if ranks.tensor.size == 1 or ranks.place.sizes.experts is not ExpertPlacement.CUT:
        return ExpertShare(numbers=numbers)
    inner = ranks.place.part(intermediate_size)
    return ExpertShare(numbers=numbers, inner=inner, has_bias=has_bias_of(ranks, True), ranks=ranks.tensor)


def has_bias_of(ranks: Ranks, has_bias: bool) -> bool:
    """Say whether this rank adds the bias of a layer that is `summed`: one of them does."""
    return has_bias and ranks.place.tensor_rank == 0


class SummedInParts:
    """A layer whose inputs are divided into `NUM_SUMS` parts, of which each rank has as many.

    Results of parts are added in float32, pairs of neighbours first, and rounded once: alike for every
    number of ranks that divides them.
    """

    def __init__(self, parts: Sequence[Layer], ranks: Collectives) -> None:
        self._parts = parts
        self._ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        """As `Summed`."""
        inputs = x.chunk(len(self._parts), dim=-1)
        own = _add_pairs([part(one).float() for part, one in zip(self._parts, inputs, strict=True)])
        return _add_pairs(list(self._ranks.all_gather(own))).to(x.dtype)


def _add_pairs(tensors: list[Tensor]) -> Tensor:
    """Return the sum of a power of two of tensors: of neighbours, then of their sums."""
    while len(tensors) > 1:
        tensors = [left + right for left, right in zip(tensors[::2], tensors[1::2], strict=True)]
    return tensors[0]


class Summed:
    """A layer whose inputs are divided over ranks: their results are added up."""

    def __init__(self, part: Layer, ranks: Collectives) -> None:
        self._part = part
        self._ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        """Map this rank's inputs `[num_rows, its in_features]` to the whole `[num_rows, out_features]`."""
        return self._ranks.all_reduce(self._part(x))


def load_summed(
    load: Callable[[Share, bool], Layer], ranks: Ranks, inputs: range, *, has_bias: bool
) -> Layer:
    """Return the layer of which this rank has a share of the inputs.

    `load` takes a share, and whether to add the bias.

    Raises:
        InvalidModelError: as `load`.
    """
    has_bias = has_bias_of(ranks, has_bias)
    if ranks.place.sizes.is_invariant:
        size = len(inputs) * ranks.tensor.size // NUM_SUMS
        parts = [range(start, start + size) for start in range(inputs.start, inputs.stop, size)]
        layers = [load(Share(inputs=part), has_bias and part.start == 0) for part in parts]
        return SummedInParts(layers, ranks.tensor)
    layer = load(share_of_inputs(ranks, inputs), has_bias)
    return layer if ranks.tensor.size == 1 else Summed(layer, ranks.tensor)


def scaled(indices: range, unit: int) -> range:
    """Return the numbers that belong to consecutive heads of `unit` numbers each."""
    return range(indices.start * unit, indices.stop * unit)
