"""An estimate of what steps compute and move, from the shape of their model.

Counted are matrix products and attention, and the bytes of weights, of inputs and outputs of linear layers
and of the KV cache, as if each were moved once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from baton_core.step_work import StepWork
from baton_core.worker.step_plan import SequenceSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Matrices of one shape, by which rows are multiplied."""

    inputs: int
    outputs: int
    num_used: int = 1
    """Matrices that each row is multiplied by."""
    num_stored: int = 1
    """Matrices that there are; more than are used by one row where they are experts'."""

    @property
    def num_weights(self) -> int:
        return self.num_stored * self.inputs * self.outputs

    def num_read_weights(self, num_rows: int) -> float:
        """Weights that so many rows use, if each row takes any of the matrices alike."""
        missed = 1 - self.num_used / max(self.num_stored, 1)
        return self.num_weights * (1 - missed**num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup:
    """Layers that see the same tokens."""

    num_layers: int
    window: int | None = None
    """Number of last tokens that a token sees, itself included; None is all."""

    def num_pairs(self, start: int, count: int, *, is_causal: bool) -> int:
        """Pairs of one of `count` tokens behind `start` others and a token that it sees."""
        if not is_causal:
            reach = count if self.window is None else self.window
            num_near = min(count, reach + 1)
            return count + num_near * (num_near - 1) + 2 * (count - num_near) * reach
        window = start + count if self.window is None else self.window
        num_growing = min(max(window - start, 0), count)  # tokens that see all tokens before them
        growing = num_growing * start + num_growing * (num_growing + 1) // 2
        return growing + (count - num_growing) * window

    def num_seen(self, start: int, count: int) -> int:
        """Tokens that are seen by some of them."""
        return start + count if self.window is None else min(start + count, self.window + count - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """The shape of a model, which `num_ranks` accelerators divide evenly."""

    products: tuple[Product, ...]
    """Products of each token."""
    head: tuple[Product, ...]
    """Products of each row of logits."""
    groups: tuple[AttentionGroup, ...]
    query_size: int
    """Elements of a token's query in a layer, over all heads."""
    kv_bytes: int
    """Bytes of a token's K and V in a layer; 0 without a KV cache."""
    weight_bytes: float
    """Bytes of a weight, in the mean of all."""
    item_bytes: int
    """Bytes of an element of a layer's inputs and outputs."""
    num_ranks: int = 1
    is_causal: bool = True
    """False if tokens see their whole prompt."""

    def of_step(self, slices: Iterable[SequenceSlice]) -> StepWork:
        """Return the work of a step."""
        num_tokens = num_rows = 0
        flops = read = written = 0.0
        for piece in slices:
            count = piece.num_scheduled_tokens
            num_tokens += count
            num_rows += (1 + piece.num_drafts if piece.samples else 0) + len(piece.prompt_targets)
            for group in self.groups:
                num_pairs = group.num_pairs(piece.start, count, is_causal=self.is_causal)
                flops += 4 * group.num_layers * self.query_size * num_pairs
                read += group.num_layers * self.kv_bytes * group.num_seen(piece.start, count)
                written += group.num_layers * self.kv_bytes * count
        for products, rows in ((self.products, num_tokens), (self.head, num_rows)):
            for one in products:
                num_passes = one.num_used * rows
                flops += 2 * num_passes * one.inputs * one.outputs
                read += one.num_read_weights(rows) * self.weight_bytes
                read += num_passes * one.inputs * self.item_bytes
                written += num_passes * one.outputs * self.item_bytes
        parts = self.num_ranks
        return StepWork(flops=flops / parts, read_bytes=read / parts, written_bytes=written / parts)
