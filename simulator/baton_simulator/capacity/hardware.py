"""The hardware of a simulated worker: the time of its steps, its KV memory, the speed of its link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

from baton_core.errors import require
from baton_core.worker.step_plan import SequenceSlice
from baton_simulator.capacity.machines import MACHINES
from baton_simulator.capacity.model_shape import ITEM_BYTES, read_shape
from baton_simulator.capacity.roofline import Efficiency, Roofline
from baton_simulator.capacity.step_timing import read_profile

DEFAULT_OVERHEAD_S: Final = 0.002
"""Time of planning, launching and sampling in each step on a named machine."""
MEASURED_LINK: Final = 1e9
"""Bytes per second between workers whose profile tells only of steps, unless it is said."""
MEASURED_TOKENS: Final = 1_000_000
"""Tokens that a worker's cache holds whose profile tells only of steps, unless a flag sets them."""


class SliceCost(Protocol):
    def seconds(self, slices: Iterable[SequenceSlice]) -> float:
        """How long a step of these slices takes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedCost:
    """The cost of simulated steps, in which a slice's token may stand for several."""

    cost: SliceCost
    overhead_s: float = 0.0
    """Time of each step in addition to `cost`."""

    def ends_s(self, slices: Sequence[SequenceSlice], num_tokens: Sequence[int]) -> list[float]:
        """Return the seconds after which each slice has its `num_tokens[i]` tokens, at least 1.

        All slices have their first token in one step; each further one takes a step of those slices that
        are still to have it.
        """
        end_s = self.cost.seconds(slices) + self.overhead_s
        ends_s = {1: end_s}
        for before, count in pairwise(sorted({1, *num_tokens})):
            rest = [piece for piece, number in zip(slices, num_tokens, strict=True) if number > before]
            end_s += (count - before) * (self.cost.seconds(rest) + self.overhead_s)
            ends_s[count] = end_s
        return [ends_s[number] for number in num_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware of each worker of a fleet."""

    description: str
    cost: StridedCost
    kv_bytes_per_token: int
    num_kv_tokens: int
    """Tokens that its KV cache holds."""
    link_bytes_per_s: float
    """Bandwidth of copies, in each direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareChoice:
    """The requested hardware; None stands for the known value."""

    hardware: str
    """A named machine, or a profile's file."""
    model_shape: str = "llama-3-8b"
    """Not of a profile, which tells its own."""
    tensor_parallel: int = 1
    compute_efficiency: float = Efficiency.compute
    bandwidth_efficiency: float = Efficiency.bandwidth
    step_overhead_s: float | None = None
    memory_share: float = 0.9
    """Share of the memory for weights and KV."""
    num_kv_tokens: int | None = None
    link_bytes_per_s: float | None = None


def find_hardware(choice: HardwareChoice) -> Hardware:
    """Look up a machine or read a profile.

    Raises:
        InvalidConfigError: there is no such hardware or model, or the weights do not fit.
    """
    if choice.hardware in MACHINES:
        return _named(choice)
    path = Path(choice.hardware)
    allowed = f"{', '.join(MACHINES)}, or a file of bench/calibrate.py"
    require("hardware", choice.hardware, path.is_file(), allowed)
    profile = read_profile(path)
    overhead_s = choice.step_overhead_s or 0.0
    return Hardware(
        description=f"{profile}, and {overhead_s * 1e3:g} ms besides",
        cost=StridedCost(cost=profile.timing, overhead_s=overhead_s),
        kv_bytes_per_token=profile.kv_bytes_per_token,
        num_kv_tokens=choice.num_kv_tokens or MEASURED_TOKENS,
        link_bytes_per_s=choice.link_bytes_per_s or MEASURED_LINK,
    )


def _named(choice: HardwareChoice) -> Hardware:
    machine, model, parts = MACHINES[choice.hardware], read_shape(choice.model_shape), choice.tensor_parallel
    overhead_s = DEFAULT_OVERHEAD_S if choice.step_overhead_s is None else choice.step_overhead_s
    efficiency = Efficiency(compute=choice.compute_efficiency, bandwidth=choice.bandwidth_efficiency)
    roofline = Roofline(machine=machine, model=model, tensor_parallel=parts, efficiency=efficiency)
    weight_bytes = model.num_weights * ITEM_BYTES
    usable_bytes = parts * machine.memory_bytes * choice.memory_share
    num_copies = max(1, parts // model.num_kv_heads)
    num_tokens = int((usable_bytes - weight_bytes) / (model.kv_bytes_per_token * num_copies))
    needed = f"enough {machine.name} for the {weight_bytes / 1e9:.0f} GB of weights of {model.name}"
    allowed = f"{needed}; these have {usable_bytes / 1e9:.0f} GB"
    require("tensor_parallel_size", parts, num_tokens >= 1, allowed)
    return Hardware(
        description=f"{model.name} in bf16 on {parts} {machine.name}; roofline, ASSUMED: "
        f"{efficiency.compute:.0%} of peak FLOP/s, {efficiency.bandwidth:.0%} of peak bandwidth, "
        f"{overhead_s * 1e3:g} ms a step besides",
        cost=StridedCost(cost=roofline, overhead_s=overhead_s),
        kv_bytes_per_token=model.kv_bytes_per_token,
        num_kv_tokens=choice.num_kv_tokens or num_tokens,
        link_bytes_per_s=choice.link_bytes_per_s or parts * machine.network_bytes_per_s,
    )
