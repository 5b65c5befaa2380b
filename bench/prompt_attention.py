"""Measures attention of whole prompts on this CPU: the kernel that it takes, beside torch's flash attention.

    python -m bench.prompt_attention --repeats 40

CPU time of one thread for one layer, in turns, and the fastest of each. The kernel reads keys and values from
KV blocks, those of encoders aside; torch gets them as tensors, with as many heads as queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.selection import load_build
from baton_kernels.interface.kernels import AttentionBatch
from bench.command_line import make_parser

BLOCK_SIZE: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Prompts of one length, and heads."""

    num_seqs: int = 1
    num_tokens: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    is_encoder: bool = False

    def __str__(self) -> str:
        kind = " (encoder)" if self.is_encoder else ""
        heads = f"{self.num_q_heads}/{self.num_kv_heads} x {self.head_dim}"
        return f"{self.num_seqs} x {self.num_tokens} tokens, {heads}{kind}"


SHAPES: Final = (
    Shape(num_tokens=512, num_q_heads=14, num_kv_heads=2, head_dim=64),
    Shape(num_tokens=1024, num_q_heads=14, num_kv_heads=2, head_dim=64),
    Shape(num_tokens=1024, num_q_heads=16, num_kv_heads=8, head_dim=128),
    Shape(num_seqs=16, num_tokens=128, num_q_heads=12, num_kv_heads=12, head_dim=64, is_encoder=True),
    Shape(num_seqs=4, num_tokens=512, num_q_heads=12, num_kv_heads=12, head_dim=64, is_encoder=True),
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--cpu-kernels", default="auto", help="the path of the kernel, as of baton serve")
    options = parser.parse_args()
    library = load_build(options.cpu_kernels)
    if library is None:
        parser.error("this machine has no C++ kernels")
    torch.set_num_threads(1)
    print(f"{library.variant.name}, bfloat16\n{'':40}{'kernel ms':>12}{'torch ms':>12}{'ratio':>8}")
    for shape in SHAPES:
        ours, theirs = measure(
            shape, CpuAttention(library, is_v_transposed=library.variant.has_tiles), options.repeats
        )
        print(f"{shape!s:40}{1e3 * ours:12.2f}{1e3 * theirs:12.2f}{theirs / ours:8.2f}", flush=True)


def measure(shape: Shape, attention: CpuAttention, repeats: int) -> tuple[float, float]:
    """Return the fewest seconds of CPU time of the kernel and of torch, which have to agree."""
    generator = torch.Generator().manual_seed(0)
    num_tokens = shape.num_seqs * shape.num_tokens

    def normal(num_heads: int) -> Tensor:
        return torch.randn(num_tokens, num_heads, shape.head_dim, generator=generator).to(torch.bfloat16)

    q, k, v = normal(shape.num_q_heads), normal(shape.num_kv_heads), normal(shape.num_kv_heads)
    calls = kernel_call(shape, attention, q, k, v), torch_call(shape, q, k, v)
    ours, theirs = (call().reshape(num_tokens, -1).float() for call in calls)
    assert (ours - theirs).abs().max() < 0.05, "kernel and torch compute the same"
    fewest = [float("inf")] * 2
    for _ in range(repeats):
        for number, call in enumerate(calls):
            began_s = time.thread_time()
            call()
            fewest[number] = min(fewest[number], time.thread_time() - began_s)
    return fewest[0], fewest[1]


def kernel_call(
    shape: Shape, attention: CpuAttention, q: Tensor, k: Tensor, v: Tensor
) -> Callable[[], Tensor]:
    """Return a call of the kernel; prompts of decoders lie in KV blocks then."""
    scale, lengths = shape.head_dim**-0.5, [shape.num_tokens] * shape.num_seqs
    if shape.is_encoder:
        return lambda: attention.bidirectional(q, k, v, lengths, scale)
    num_blocks = -(-shape.num_tokens // BLOCK_SIZE)
    tables = [list(range(seq * num_blocks, (seq + 1) * num_blocks)) for seq in range(shape.num_seqs)]
    batch = AttentionBatch.build(
        query_lens=lengths, context_lens=lengths, block_tables=tables, block_size=BLOCK_SIZE
    )
    sizes = (num_blocks * shape.num_seqs, 1, 2, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)
    kv_pool = torch.zeros(sizes, dtype=torch.bfloat16)
    attention.write(k, v, kv_pool, 0, batch)
    return lambda: attention.attention(q, k, v, kv_pool, 0, batch, scale)


def torch_call(shape: Shape, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """Return a call of torch's attention over `[num_seqs, num_heads, num_tokens, head_dim]`."""

    def batched(side: Tensor) -> Tensor:
        side = side.view(shape.num_seqs, shape.num_tokens, -1, shape.head_dim).transpose(1, 2)
        return side.repeat_interleave(shape.num_q_heads // side.shape[1], dim=1).contiguous()

    sides = batched(q), batched(k), batched(v)
    return lambda: functional.scaled_dot_product_attention(*sides, is_causal=not shape.is_encoder).transpose(
        1, 2
    )


if __name__ == "__main__":
    main()
