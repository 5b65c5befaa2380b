"""Named machines: what their makers publish of one accelerator, and of the network beside it.

Source: NVIDIA's data sheets of H200, H100, A100 80GB and L40S (values with sparsity are halved), and of the
systems DGX H200, H100, A100 and B200 (divided by their eight GPUs, which have one network adapter each);
Intel's specification of the Xeon Platinum 8480+ (56 cores, 2 GHz) and its AMX rate of 1,024 bf16 operations
per cycle and core. Where a maker names no network adapter (L40S, Xeon), 200 and 100 Gbit/s are assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

TERA: Final = 1e12
GIGA: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One accelerator, or one socket of a CPU."""

    name: str
    peak_flops_per_s: float
    """Dense bf16."""
    memory_bytes_per_s: float
    memory_bytes: float
    peer_bytes_per_s: float
    """To the others of its tensor-parallel group, in one direction."""
    network_bytes_per_s: float
    """To other workers, in one direction."""


_MACHINES: Final = (
    Machine(
        name="b200",
        peak_flops_per_s=2250 * TERA,
        memory_bytes_per_s=8 * TERA,
        memory_bytes=180 * GIGA,
        peer_bytes_per_s=900 * GIGA,
        network_bytes_per_s=50 * GIGA,
    ),
    Machine(
        name="h200",
        peak_flops_per_s=989 * TERA,
        memory_bytes_per_s=4.8 * TERA,
        memory_bytes=141 * GIGA,
        peer_bytes_per_s=450 * GIGA,
        network_bytes_per_s=50 * GIGA,
    ),
    Machine(
        name="h100",
        peak_flops_per_s=989 * TERA,
        memory_bytes_per_s=3.35 * TERA,
        memory_bytes=80 * GIGA,
        peer_bytes_per_s=450 * GIGA,
        network_bytes_per_s=50 * GIGA,
    ),
    Machine(
        name="a100",
        peak_flops_per_s=312 * TERA,
        memory_bytes_per_s=2.039 * TERA,
        memory_bytes=80 * GIGA,
        peer_bytes_per_s=300 * GIGA,
        network_bytes_per_s=25 * GIGA,
    ),
    Machine(
        name="l40s",
        peak_flops_per_s=362 * TERA,
        memory_bytes_per_s=0.864 * TERA,
        memory_bytes=48 * GIGA,
        peer_bytes_per_s=32 * GIGA,
        network_bytes_per_s=25 * GIGA,
    ),
    Machine(
        name="cpu",
        peak_flops_per_s=114.7 * TERA,
        memory_bytes_per_s=0.3072 * TERA,
        memory_bytes=512 * GIGA,
        peer_bytes_per_s=48 * GIGA,
        network_bytes_per_s=12.5 * GIGA,
    ),
)
MACHINES: Final = MappingProxyType({machine.name: machine for machine in _MACHINES})
