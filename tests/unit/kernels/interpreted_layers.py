"""Run Triton's cache and layer kernels on the CPU, in its interpreter, and print each case's largest error.

`TRITON_INTERPRET=1 python -m tests.unit.kernels.interpreted_layers`: a process of its own, because kernels
read the variable when they are defined. Errors are relative to the reference in float64.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from baton_kernels.interface.kernels import AttentionBatch, Function, rotate
from tests.unit.kernels.lora_adapters import make_layer, make_parts, reference

LAYER: Final = 1
BLOCK_SIZE: Final = 4
NUM_Q_HEADS, NUM_KV_HEADS = 6, 2
E4M3: Final = torch.float8_e4m3fn
# The interpreter cuts off what a store to bfloat16 would round.
TOLERANCE: Final = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10, E4M3: 2**-4}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCase:
    head_dim: int = 64
    rotary_dim: int = 64
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class NormCase:
    shape: tuple[int, ...] = (3, 96)
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype = torch.float32


CACHE_CASES: Final = {
    "head_64": CacheCase(),
    "head_80_partial": CacheCase(head_dim=80, rotary_dim=32, dtype=torch.float16, pool_dtype=torch.float16),
    "head_96": CacheCase(head_dim=96, rotary_dim=96, dtype=torch.bfloat16, pool_dtype=torch.bfloat16),
    "head_256": CacheCase(head_dim=256, rotary_dim=128),
    "into_e4m3": CacheCase(head_dim=128, rotary_dim=128, dtype=torch.bfloat16, pool_dtype=E4M3),
    "into_f16": CacheCase(pool_dtype=torch.float16),
}
NORM_CASES: Final = {
    "float32": NormCase(),
    "bfloat16": NormCase(dtype=torch.bfloat16, weight_dtype=torch.bfloat16),
    "bfloat16_wide_weight": NormCase(dtype=torch.bfloat16),
    "float16_heads": NormCase(shape=(2, 5, 80), dtype=torch.float16, weight_dtype=torch.float16),
}
_generator = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=_generator).to(dtype)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float(((actual.double() - expected).abs() / expected.abs().clamp(min=1.0)).max())


def cache_errors(case: CacheCase) -> dict[str, float]:
    """Rotate and write a prompt chunk, a decode and a padded slot between NaN: error of q, k and the pool."""
    from baton_kernels.triton.cache import rotate_and_write, write  # reads TRITON_INTERPRET

    batch = AttentionBatch.build(
        query_lens=[3, 1, 1],
        context_lens=[5, 7, 1],
        block_tables=[[4, 1], [0, 3], [2]],
        block_size=BLOCK_SIZE,
    )
    batch.slot_mapping[-1] = -1
    heads = (NUM_Q_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
    q, k, v = (normal(5, sum(heads), case.head_dim, dtype=case.dtype) * 3).split(heads, 1)
    angles = normal(5, 1, case.rotary_dim // 2).repeat(1, 1, 2)
    cos, sin = angles.cos().to(case.dtype), angles.sin().to(case.dtype)
    shape = (6, 2, 2, NUM_KV_HEADS, BLOCK_SIZE, case.head_dim)
    pools = [torch.full(shape, torch.nan).to(case.pool_dtype) for _ in range(2)]
    turned_q, turned_k = rotate_and_write(q, k, v, cos, sin, pools[0], LAYER, batch)
    write(turned_k, v, pools[1], LAYER, batch)
    expected_q, expected_k = (rotate(x.double(), cos.double(), sin.double()) for x in (q, k))
    bits = pools[0].view(torch.uint8)
    return {
        "q": relative_error(turned_q, expected_q) / TOLERANCE[case.dtype],
        "k": relative_error(turned_k, expected_k) / TOLERANCE[case.dtype],
        "cached": pool_error(pools[0], turned_k, v, batch),
        "written alike": float((bits != pools[1].view(torch.uint8)).sum()),
    }


def pool_error(pool: Tensor, k: Tensor, v: Tensor, batch: AttentionBatch) -> float:
    """Error of the written slots in units of the tolerance; infinite if anything else was touched."""
    expected = torch.full(pool.shape, torch.nan, dtype=torch.float64)
    largest = torch.finfo(pool.dtype).max
    for token, slot in enumerate(batch.slot_mapping.tolist()):
        if slot >= 0:
            place = (slot // BLOCK_SIZE, LAYER, slice(None), slice(None), slot % BLOCK_SIZE)
            expected[place] = torch.stack((k[token], v[token])).double().clamp(-largest, largest)
    if not torch.equal(pool.float().isnan(), expected.isnan()):
        return float("inf")
    return relative_error(pool.float().nan_to_num(), expected.nan_to_num()) / TOLERANCE[pool.dtype]


def norm_errors(case: NormCase) -> dict[str, float]:
    """Error of both norms and of the sum, in units of the tolerance."""
    from baton_kernels.triton.layers import TritonLayers  # reads TRITON_INTERPRET

    x = normal(*case.shape[:-1], case.shape[-1] + 32, dtype=case.dtype)[..., : case.shape[-1]]
    residual, weight = normal(*case.shape, dtype=case.dtype), normal(case.shape[-1], dtype=case.weight_dtype)
    total = (x.float() + residual.float()).to(case.dtype)
    expected, expected_sum = (scaled(value.double(), weight.double()) for value in (x, total))
    layers = TritonLayers()
    plain = layers.rms_norm(x, weight, 1e-6)
    normed, summed = layers.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    tolerance = 2 * TOLERANCE[case.dtype]
    return {
        "rms_norm": relative_error(plain, expected) / tolerance,
        "add_rms_norm": relative_error(normed, expected_sum) / tolerance,
        "sum": relative_error(summed, total.double()) / tolerance,
    }


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def silu_error(dtype: torch.dtype) -> float:
    from baton_kernels.triton.layers import TritonLayers  # reads TRITON_INTERPRET

    gate_up = normal(3, 2 * 200, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, -1)
    gated = TritonLayers().apply_mul(Function.SILU, gate_up)
    return relative_error(gated, gate * gate.sigmoid() * up) / TOLERANCE[dtype]


def product_errors(dtype: torch.dtype) -> dict[str, float]:
    """Error of a linear layer without whole tiles, and how far rows alone are from the same in a batch."""
    from baton_kernels.triton.invariant import InvariantTritonLayers  # reads TRITON_INTERPRET

    rows, weight, bias = normal(70, 90, dtype=dtype), normal(40, 90, dtype=dtype), normal(40, dtype=dtype)
    product = InvariantTritonLayers().product(weight, bias)
    out = product(rows)
    expected = rows.double() @ weight.double().T + bias.double()
    alone = torch.cat([product(rows[row : row + 1]) for row in (0, 13, 69)])
    return {
        "error": relative_error(out, expected) / (4 * TOLERANCE[dtype]),
        "alone": float((alone - out[[0, 13, 69]]).abs().max()),
    }


def lora_errors(dtype: torch.dtype) -> dict[str, float]:
    """Error of adapters of a linear layer and an embedding; how far rows alone are from those in a batch."""
    from baton_kernels.triton.lora import TritonLoraTable  # reads TRITON_INTERPRET

    report = {}
    for name, in_size, part_sizes in (("linear", 150, (45, 64, 3)), ("embedding", 50, (33,))):
        layer = make_layer(in_size, part_sizes, 4, dtype, is_embedding=name == "embedding")
        table = TritonLoraTable(layer)
        adapters = [
            make_parts(layer, ranks, seed) for seed, ranks in enumerate(((16, 3, 1), (70, 0, 2), (0, 5, 8)))
        ]
        for slot, parts in enumerate(adapters):
            table.set(slot, parts)
        x = normal(37, in_size, dtype=dtype)
        if layer.is_embedding:
            x = torch.randint(in_size, (37,), generator=_generator)
        y, row_slots = normal(37, sum(part_sizes), dtype=dtype), torch.arange(37, dtype=torch.int32) % 4 - 1
        whole, alone = y.clone(), y[20:21].clone()
        table.add(x, whole, row_slots)
        table.add(x[20:21], alone, row_slots[20:21])
        report[name] = relative_error(whole, reference(layer, adapters, x, y, row_slots)) / (
            4 * TOLERANCE[dtype]
        )
        report[f"{name} alone"] = float((alone - whole[20]).abs().max())
    return report


def e4m3_differences() -> int:
    """In how many values the conversion differs from torch's, which rounds alike but does not saturate."""
    from baton_kernels.triton.cache import write  # reads TRITON_INTERPRET

    bits = torch.arange(0, 1 << 32, (1 << 18) - 7, dtype=torch.int64).to(torch.int32)
    edges = torch.tensor([0.0, -0.0, 448.0, 464.0, 465.0, 1e9, 2**-6, 2**-9, 2**-10, 1.1 * 2**-10, torch.inf])
    values = torch.cat((bits.view(torch.float32), edges, -edges))
    values = torch.cat((values, torch.zeros(-len(values) % 256))).view(-1, 1, 256)
    blocks = list(range(-(-len(values) // 64)))
    batch = AttentionBatch.build(
        query_lens=[len(values)], context_lens=[len(values)], block_tables=[blocks], block_size=64
    )
    pool = torch.zeros((len(blocks), 1, 2, 1, 64, 256), dtype=E4M3)
    write(values, values, pool, 0, batch)
    expected = values.clamp(-448, 448).to(E4M3).view(torch.uint8)
    actual = pool[:, 0, 0, 0].reshape(-1, 1, 256)[: len(values)].view(torch.uint8)
    is_nan = values.isnan()
    return int(((actual != expected) & ~is_nan).sum() + (actual[is_nan] & 0x7F != 0x7F).sum())


if __name__ == "__main__":
    torch.set_num_threads(1)
    report: dict[str, dict[str, float]] = {}
    report |= {f"cache {name}": cache_errors(case) for name, case in CACHE_CASES.items()}
    report |= {f"norm {name}": norm_errors(case) for name, case in NORM_CASES.items()}
    report["silu"] = {str(dtype): silu_error(dtype) for dtype in (torch.float32, torch.bfloat16)}
    report |= {f"product {dtype}": product_errors(dtype) for dtype in (torch.float32, torch.float16)}
    report |= {f"lora {dtype}": lora_errors(dtype) for dtype in (torch.float32, torch.float16)}
    report["e4m3"] = {"differences": e4m3_differences()}
    json.dump(report, sys.stdout)
