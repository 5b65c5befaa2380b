"""How long a step takes on a machine that nobody has measured: the slower of computing and of moving bytes.

Source: Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", 2009.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from baton_core.errors import require
from baton_core.worker.step_plan import SequenceSlice
from baton_simulator.capacity.machines import Machine
from baton_simulator.capacity.model_shape import ITEM_BYTES, ModelShape


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Fractions of the published peaks that a step reaches. They are assumptions, to be set.

    Raises:
        InvalidConfigError: a share is not over 0 to 1.
    """

    compute: float = 0.5
    bandwidth: float = 0.7
    """Fraction for memory, and for the links within a tensor-parallel group."""

    def __post_init__(self) -> None:
        for name in ("compute", "bandwidth"):
            value = getattr(self, name)
            require(f"{name}_efficiency", value, 0 < value <= 1, "over 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The work of a step, over all accelerators of a worker."""

    flops: float
    weight_bytes: float
    kv_bytes: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A model on `tensor_parallel` machines of one kind.

    Raises:
        InvalidConfigError: the heads cannot be divided so.
    """

    machine: Machine
    model: ModelShape
    tensor_parallel: int = 1
    efficiency: Efficiency = Efficiency()

    def __post_init__(self) -> None:
        parts, num_heads = self.tensor_parallel, self.model.num_heads
        allowed = f"a divisor of {num_heads}, the heads of {self.model.name}"
        require("tensor_parallel_size", parts, parts >= 1 and num_heads % parts == 0, allowed)

    def seconds(self, slices: Iterable[SequenceSlice]) -> float:
        """How long a step of these slices takes."""
        work, machine, share = self.work(slices), self.machine, self.efficiency
        num_kv_parts = min(self.tensor_parallel, self.model.num_kv_heads)
        compute_s = work.flops / (self.tensor_parallel * machine.peak_flops_per_s * share.compute)
        num_bytes = work.weight_bytes / self.tensor_parallel + work.kv_bytes / num_kv_parts
        memory_s = num_bytes / (machine.memory_bytes_per_s * share.bandwidth)
        return max(compute_s, memory_s) + self._reduce_s(work.num_tokens)

    def work(self, slices: Iterable[SequenceSlice]) -> StepWork:
        """Count it. A slice of n tokens behind s others reads the KV of s and writes that of n."""
        model = self.model
        num_tokens = num_pairs = num_kv_tokens = num_draws = 0
        for piece in slices:
            count, start = piece.num_scheduled_tokens, piece.start
            num_tokens += count
            num_pairs += count * start + count * (count + 1) // 2
            num_kv_tokens += start + count
            num_draws += bool(piece.samples)
        active = model.layer_weights(model.num_active_experts)
        touched = model.layer_weights(model.num_touched_experts(num_tokens))
        head = model.hidden_size * model.vocab_size
        attention = 4 * model.num_layers * model.num_heads * model.head_dim * num_pairs
        return StepWork(
            flops=2 * (active * num_tokens + head * num_draws) + attention,
            weight_bytes=ITEM_BYTES * (touched + (head if num_draws else 0)),
            kv_bytes=float(model.kv_bytes_per_token * num_kv_tokens),
            num_tokens=num_tokens,
        )

    def _reduce_s(self, num_tokens: int) -> float:
        """Two all-reduces of the hidden states in each layer, as a ring; nothing hides them."""
        parts = self.tensor_parallel
        num_bytes = 2 * self.model.num_layers * num_tokens * self.model.hidden_size * ITEM_BYTES
        rate = self.machine.peer_bytes_per_s * self.efficiency.bandwidth
        return 2 * (parts - 1) / parts * num_bytes / rate
