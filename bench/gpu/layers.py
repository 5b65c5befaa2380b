"""Kernels between the matrix products, for `bench.gpu`: each against its bytes and against eager torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from baton_kernels.interface.kernels import AttentionBatch, Function, LayerKernels
from baton_kernels.interface.sampling import SampleBatch, SamplingKernels
from baton_kernels.reference.torch_attention import TorchAttention
from baton_kernels.reference.torch_sampling import TorchSampling
from baton_kernels.selection import select_kernels
from bench.gpu.attention import BLOCK_SIZE
from bench.gpu.measures import (
    LLAMA3_8B,
    TINY,
    Cell,
    Clock,
    ModelShape,
    Setup,
    Table,
    attempt,
    measure_limits,
    percent,
)

Contenders = tuple[str, int, Callable[[], object], Callable[[], object]]
"""Name, bytes read and written, ours, and torch's."""


def layers(setup: Setup) -> list[Table]:
    """Norms, gates, rotations with the cache's write, and draws, at a decode's and a chunk's size."""
    shape, sizes = (TINY, (3,)) if setup.is_quick else (LLAMA3_8B, (32, 2048))
    clock = Clock(setup)
    limits = measure_limits(setup, clock)
    rows: list[tuple[Cell, ...]] = []
    for num_tokens in sizes:
        for name, num_bytes, ours, plain in _contenders(setup, shape, num_tokens):
            floor_us = num_bytes / limits.copy_bytes_per_s * 1e6
            our_us = attempt(lambda ours=ours: clock.seconds(ours), 1e6)
            torch_us = attempt(lambda plain=plain: clock.seconds(plain), 1e6)
            rows.append((name, num_tokens, floor_us, our_us, percent(floor_us, our_us), torch_us))
    title = f"Between the products, µs; copy bandwidth {limits.copy_bytes_per_s / 1e12:.2f} TB/s"
    columns = ("kernel", "rows", "floor", "Baton", "of the floor", "torch")
    return [Table(title=title, columns=columns, rows=rows)]


def _contenders(setup: Setup, shape: ModelShape, num_tokens: int) -> Iterator[Contenders]:
    kernels = select_kernels(setup.device, setup.dtype)
    ours, plain = kernels.layers, LayerKernels()
    size = setup.dtype.itemsize * num_tokens

    def random(*axes: int) -> Tensor:
        return torch.randn(axes, device=setup.device, dtype=setup.dtype)

    x, residual, weight = (
        random(num_tokens, shape.hidden_size),
        random(num_tokens, shape.hidden_size),
        random(shape.hidden_size),
    )
    gate_up = random(num_tokens, 2 * shape.intermediate_size)
    width = shape.hidden_size * size
    yield (
        "rms_norm",
        2 * width,
        lambda: ours.rms_norm(x, weight, 1e-6),
        lambda: plain.rms_norm(x, weight, 1e-6),
    )
    # Each run adds to the same residual, whose numbers stay finite for far more runs than there are.
    yield (
        "add_rms_norm",
        4 * width,
        lambda: ours.add_rms_norm(x, residual, weight, 1e-6),
        lambda: plain.add_rms_norm(x, residual, weight, 1e-6),
    )
    yield (
        "silu_mul",
        3 * shape.intermediate_size * size,
        lambda: ours.apply_mul(Function.SILU, gate_up),
        lambda: plain.apply_mul(Function.SILU, gate_up),
    )
    yield _rotation(setup, shape, num_tokens, random)
    if num_tokens <= 256:
        yield from _draws(setup, kernels.sampling, random(num_tokens, shape.vocab_size))


def _rotation(setup: Setup, shape: ModelShape, num_tokens: int, random: Callable[..., Tensor]) -> Contenders:
    attention = select_kernels(setup.device, setup.dtype).attention
    heads, num_blocks = shape.heads, -(-num_tokens // BLOCK_SIZE)
    pool = random(num_blocks, 1, 2, heads.num_kv_heads, BLOCK_SIZE, heads.head_dim)
    batch = AttentionBatch.build(
        query_lens=[num_tokens],
        context_lens=[num_tokens],
        block_tables=[range(num_blocks)],
        block_size=BLOCK_SIZE,
        device=setup.device,
    )
    q, k, v = (
        random(num_tokens, count, heads.head_dim)
        for count in (heads.num_q_heads, heads.num_kv_heads, heads.num_kv_heads)
    )
    cos, sin = (random(num_tokens, 1, heads.head_dim) for _ in range(2))
    arguments = (q, k, v, cos, sin, pool, 0, batch)
    num_rows = 2 * heads.num_q_heads + 5 * heads.num_kv_heads + 2  # k goes to the pool and to attention
    num_bytes = num_tokens * num_rows * heads.head_dim * setup.dtype.itemsize
    return (
        "rotate_and_write",
        num_bytes,
        lambda: attention.rotate_and_write(*arguments),
        lambda: TorchAttention().rotate_and_write(*arguments),
    )


def _draws(setup: Setup, sampling: SamplingKernels, logits: Tensor) -> Iterator[Contenders]:
    num_rows = len(logits)
    settings = {"greedy": (0.0, 0, 1.0), "sampled": (1.0, 0, 1.0), "top_k, top_p": (0.8, 50, 0.95)}
    for name, (temperature, top_k, top_p) in settings.items():
        batch = SampleBatch.build(
            seeds=range(num_rows),
            positions=range(num_rows),
            top_k=[top_k] * num_rows,
            temperature=[temperature] * num_rows,
            top_p=[top_p] * num_rows,
            min_p=[0.0] * num_rows,
            device=setup.device,
        )
        yield (
            f"draw, {name}",
            logits.nbytes,
            lambda batch=batch: sampling.sample(logits, batch),
            lambda batch=batch: TorchSampling().sample(logits, batch),
        )
