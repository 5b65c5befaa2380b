"""The attention kernels for `bench.gpu`: against float64, against their floors, and against the peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.interface.kernels import AttentionBatch, AttentionKernels
from baton_kernels.reference.torch_attention import TorchAttention
from baton_kernels.selection import select_kernels
from bench.gpu.measures import (
    LLAMA3_8B,
    QWEN2_387M,
    TINY,
    Cell,
    Clock,
    Heads,
    Setup,
    Table,
    attempt,
    attempt_peer,
    decode_attention_bytes,
    measure_limits,
    percent,
    prefill_attention_flops,
)

BLOCK_SIZE: Final = 32
TOLERANCE: Final = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}
WORKSPACE_BYTES: Final = 256 << 20
NOT_QUICK: Final = "not in a quick run"


def head_shapes(setup: Setup) -> tuple[Heads, ...]:
    shapes = {"tiny": TINY} if setup.is_quick else {"Llama-3-8B": LLAMA3_8B, "Qwen2 387 M": QWEN2_387M}
    return tuple(replace(shape.heads, name=name) for name, shape in shapes.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Sequences of one length with `query_len` new tokens each, in a pool of one layer."""

    heads: Heads
    num_seqs: int
    query_len: int
    context: int
    q: Tensor
    """`[num_seqs * query_len, num_q_heads, head_dim]`."""
    k: Tensor
    v: Tensor
    """Both `[num_seqs * query_len, num_kv_heads, head_dim]`, in the pool already."""
    kv_pool: Tensor
    batch: AttentionBatch
    kernels: AttentionKernels

    @property
    def scale(self) -> float:
        return float(self.heads.head_dim**-0.5)

    def attention(self) -> Tensor:
        return self.kernels.attention(self.q, self.k, self.v, self.kv_pool, 0, self.batch, self.scale)

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, K and V as SDPA takes them: `[num_seqs, heads, tokens, head_dim]`, contiguous."""
        tables = self.batch.block_tables.long()
        sides = []
        for side in (0, 1):
            gathered = self.kv_pool[:, 0, side][tables].transpose(1, 2).flatten(2, 3)
            sides.append(gathered[:, :, : self.context].contiguous())
        shape = (self.num_seqs, self.query_len, self.heads.num_q_heads, self.heads.head_dim)
        return self.q.view(shape).transpose(1, 2).contiguous(), *sides

    def largest_error(self) -> float:
        """The largest error of the kernel against float64."""
        q, k, v = (x.double() for x in self.dense())
        ages = torch.arange(self.context, device=q.device)
        queries = torch.arange(self.context - self.query_len, self.context, device=q.device)
        is_visible = queries[:, None] >= ages[None, :]
        group = self.heads.num_q_heads // self.heads.num_kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = (q @ k.transpose(2, 3) * self.scale).masked_fill(~is_visible, -torch.inf)
        expected = (scores.softmax(-1) @ v).transpose(1, 2).flatten(0, 1)
        return float((self.attention().double() - expected).abs().max())


def make_step(setup: Setup, heads: Heads, num_seqs: int, query_len: int, context: int) -> Step:
    """K and V of random numbers in blocks that lie in random order, as after some hours of service."""
    per_seq = -(-context // BLOCK_SIZE)
    order = torch.randperm(num_seqs * per_seq, generator=torch.Generator().manual_seed(0))
    pool_shape = (num_seqs * per_seq, 1, 2, heads.num_kv_heads, BLOCK_SIZE, heads.head_dim)
    kernels = select_kernels(setup.device, setup.dtype).attention
    if kernels.v_axes != "HTD":  # a CPU's own layout, which SDPA and float64 would have to undo
        kernels = TorchAttention()
    pool = torch.randn(pool_shape, device=setup.device, dtype=setup.dtype)
    q_shape = (num_seqs * query_len, heads.num_q_heads, heads.head_dim)
    batch = AttentionBatch.build(
        query_lens=[query_len] * num_seqs,
        context_lens=[context] * num_seqs,
        block_tables=order.view(num_seqs, per_seq).tolist(),
        block_size=BLOCK_SIZE,
        device=setup.device,
    )
    blocks, offsets = batch.slot_mapping // BLOCK_SIZE, batch.slot_mapping % BLOCK_SIZE
    return Step(
        heads=heads,
        num_seqs=num_seqs,
        query_len=query_len,
        context=context,
        q=torch.randn(q_shape, device=setup.device, dtype=setup.dtype),
        k=pool[blocks, 0, 0, :, offsets],
        v=pool[blocks, 0, 1, :, offsets],
        kv_pool=pool,
        batch=batch,
        kernels=kernels,
    )


def correctness(setup: Setup) -> list[Table]:
    """Largest differences from float64, decodes and chunks with and without a prefix."""
    cases = [(3, 1, 70), (2, 40, 70)]
    if not setup.is_quick:
        cases = [(1, 1, 8192), (32, 1, 2048), (33, 1, 777), (1, 2048, 2048), (2, 500, 1300)]
    rows: list[tuple[Cell, ...]] = []
    for heads in head_shapes(setup):
        for num_seqs, query_len, context in cases:
            error = make_step(setup, heads, num_seqs, query_len, context).largest_error()
            allowed = TOLERANCE[setup.dtype]
            verdict = "ok" if error <= allowed else "WRONG"
            rows.append((heads.name, num_seqs, query_len, context, error, allowed, verdict))
    columns = ("heads of", "sequences", "new tokens", "context", "largest error", "allowed", "")
    return [Table(title="Attention against float64", columns=columns, rows=rows)]


def decode(setup: Setup) -> list[Table]:
    """One-token steps against the bytes of K and V, and against peers over dense K and V."""
    cases = (
        [(2, 64)]
        if setup.is_quick
        else [(1, 2048), (1, 32_768), (8, 8192), (32, 2048), (32, 8192), (128, 2048)]
    )
    clock = Clock(setup)
    limits = measure_limits(setup, clock)
    rows: list[tuple[Cell, ...]] = []
    for heads in head_shapes(setup):
        for num_seqs, context in cases:
            step = make_step(setup, heads, num_seqs, 1, context)
            num_bytes = decode_attention_bytes(heads, num_seqs, context, setup.dtype.itemsize)
            floor_s = num_bytes / limits.copy_bytes_per_s
            ours = attempt(lambda step=step: clock.seconds(step.attention), 1e6)
            peers = _peers(setup, clock, step)
            share = percent(floor_s * 1e6, ours)
            rows.append((heads.name, num_seqs, context, floor_s * 1e6, ours, share, *peers))
    title = f"Decode attention, µs; copy bandwidth {limits.copy_bytes_per_s / 1e12:.2f} TB/s"
    columns = ("heads of", "batch", "context", "floor", "Baton", "of the floor", *PEERS)
    return [Table(title=title, columns=columns, rows=rows)]


def prefill(setup: Setup) -> list[Table]:
    """Prompts of one sequence against the matrix peak; the last of them over a prefix, as chunks have."""
    cases = [(40, 40)] if setup.is_quick else [(1024, 1024), (2048, 2048), (8192, 8192), (2048, 8192)]
    clock = Clock(setup)
    limits = measure_limits(setup, clock)
    rows: list[tuple[Cell, ...]] = []
    for heads in head_shapes(setup):
        for num_tokens, context in cases:
            step = make_step(setup, heads, 1, num_tokens, context)
            flops = prefill_attention_flops(heads, num_tokens, context)
            floor_s = flops / limits.matrix_flops_per_s
            ours = attempt(lambda step=step: clock.seconds(step.attention), 1e6)
            peers = _peers(setup, clock, step) if num_tokens == context else [None] * len(PEERS)
            share = percent(floor_s * 1e6, ours)
            rows.append((heads.name, num_tokens, context, floor_s * 1e6, ours, share, *peers))
    title = f"Prefill attention, µs; matrix peak {limits.matrix_flops_per_s / 1e12:.0f} TFLOP/s"
    columns = ("heads of", "new tokens", "context", "floor", "Baton", "of the peak", *PEERS)
    return [Table(title=title, columns=columns, rows=rows)]


def _peers(setup: Setup, clock: Clock, step: Step) -> list[Cell]:
    return [
        attempt_peer(setup, lambda make=make: clock.seconds(make(setup, step)), 1e6)
        for make in PEERS.values()
    ]


def sdpa(setup: Setup, step: Step) -> Callable[[], Tensor]:
    q, k, v = step.dense()
    return lambda: functional.scaled_dot_product_attention(
        q, k, v, is_causal=step.query_len > 1, enable_gqa=True
    )


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention  # slow to import, and not of every build

    return torch.compile(flex_attention, fullgraph=True)


def flex(setup: Setup, step: Step) -> Callable[[], Tensor]:
    if setup.is_quick:
        raise RuntimeError(NOT_QUICK)
    from torch.nn.attention.flex_attention import create_block_mask

    q, k, v = step.dense()
    mask = None
    if step.query_len > 1:
        lengths = (step.query_len, step.context)
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, *lengths, device=setup.device.type)
    return lambda: _compiled_flex()(q, k, v, block_mask=mask, enable_gqa=True)


def flashinfer(setup: Setup, step: Step) -> Callable[[], Tensor]:
    import flashinfer  # an optional peer

    heads = step.heads
    if step.query_len > 1:
        q = step.q
        k, v = (x[0].transpose(0, 1).contiguous() for x in step.dense()[1:])
        return lambda: flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=setup.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
    tables = step.batch.block_tables
    indptr = torch.arange(step.num_seqs + 1, dtype=torch.int32, device=setup.device) * tables.shape[1]
    last = torch.full_like(indptr[1:], (step.context - 1) % BLOCK_SIZE + 1)
    wrapper.plan(
        indptr,
        tables.flatten().contiguous(),
        last,
        heads.num_q_heads,
        heads.num_kv_heads,
        heads.head_dim,
        BLOCK_SIZE,
        q_data_type=setup.dtype,
        kv_data_type=setup.dtype,
    )
    return lambda: wrapper.run(step.q, step.kv_pool[:, 0])


PEERS: Final = {"SDPA": sdpa, "FlexAttention": flex, "FlashInfer": flashinfer}
