"""Run Triton's attention on the CPU, in its interpreter, and print each case's largest error as JSON.

`TRITON_INTERPRET=1 python -m tests.unit.kernels.interpreted_attention`: a process of its own, because kernels
read the variable when they are defined. A case costs about 4 ms per program and tile.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from tests.attention_reference import attention_reference
from tests.unit.kernels.interpreted_products import mend_products
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch

HALF, BRAIN, E4M3 = torch.float16, torch.bfloat16, torch.float8_e4m3fn


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    slices: tuple[tuple[int, int], ...]
    """(query length, context length) pairs."""
    tolerance: float = 1e-5
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    shape: dict[str, Any] = field(default_factory=dict)


# An output of about 1 has an error of 2**-8 in bfloat16, 2**-11 in float16, and so have the weights.
CASES: Final = {
    "odd_lengths": Case(slices=((1, 1), (1, 33), (1, 64), (1, 65))),
    "several_splits": Case(slices=((1, 700), (1, 3), (1, 300)), shape={"group": 1, "num_kv_heads": 1}),
    "window_across_a_split": Case(slices=((1, 700), (1, 20)), window=300, shape={"block_size": 32}),
    "window_of_one": Case(slices=((1, 130), (1, 1), (5, 40)), window=1),
    "capped_decodes": Case(slices=((1, 70), (1, 600)), softcap=1.5, window=90),
    "groups_of_7": Case(slices=((1, 70), (1, 7)), shape={"group": 7, "head_dim": 64, "block_size": 16}),
    "groups_of_20": Case(slices=((1, 70),), shape={"group": 20, "num_kv_heads": 2}),
    "padded_head": Case(slices=((1, 70), (9, 70)), shape={"head_dim": 80}),
    "head_of_96": Case(slices=((1, 37), (9, 37)), shape={"head_dim": 96, "num_kv_heads": 1}),
    "head_of_112": Case(slices=((1, 37), (9, 37)), shape={"head_dim": 112, "num_kv_heads": 1}),
    "wide_head": Case(slices=((1, 70), (7, 70)), shape={"head_dim": 256}),
    "prompts_without_a_prefix": Case(slices=((2, 2), (37, 37)), shape={"block_size": 16}),
    "chunks_over_a_prefix": Case(
        slices=((19, 150), (64, 129), (2, 99)), shape={"block_size": 32, "num_kv_heads": 1}
    ),
    "chunks_between_decodes": Case(slices=((1, 40), (7, 7), (1, 9), (33, 65), (1, 1)), window=11),
    "chunks_in_a_window": Case(slices=((40, 170), (3, 100)), window=50, shape={"block_size": 16}),
    "capped_chunks": Case(slices=((20, 90), (1, 90)), softcap=1.5, shape={"num_kv_heads": 1}),
    "chunks_of_groups_of_7": Case(slices=((11, 50), (1, 8)), shape={"group": 7, "head_dim": 64}),
    "chunks_of_groups_of_71": Case(slices=((3, 50),), shape={"group": 71, "num_kv_heads": 1}),
    "sinks_of_several_splits": Case(
        slices=((1, 700), (1, 3), (1, 1)), has_sinks=True, shape={"group": 5, "num_kv_heads": 1}
    ),
    "sinks_of_capped_chunks_in_a_window": Case(
        slices=((20, 90), (1, 90)), softcap=1.5, window=30, has_sinks=True, shape={"group": 5}
    ),
    "sinks_with_a_cache_of_e4m3": Case(
        slices=((1, 80), (9, 80)),
        tolerance=2e-2,
        has_sinks=True,
        shape={"dtype": BRAIN, "kv_dtype": E4M3, "head_dim": 64, "group": 8, "num_kv_heads": 1},
    ),
    "bfloat16": Case(
        slices=((1, 200), (40, 200), (1, 6)), tolerance=2e-2, shape={"dtype": BRAIN, "head_dim": 128}
    ),
    "wide_bfloat16": Case(
        slices=((1, 40), (40, 72)),
        tolerance=2e-2,
        softcap=3.0,
        shape={"dtype": BRAIN, "head_dim": 256, "block_size": 32},
    ),
    "float16": Case(slices=((1, 200), (40, 200), (1, 6)), tolerance=2e-3, shape={"dtype": HALF}),
    "cache_of_e4m3": Case(
        slices=((1, 200), (40, 200)),
        tolerance=2e-3,
        shape={"dtype": HALF, "kv_dtype": E4M3, "head_dim": 64, "block_size": 32},
    ),
    "cache_of_e4m3_for_bfloat16": Case(
        slices=((1, 80), (9, 80)),
        tolerance=2e-2,
        window=60,
        softcap=3.0,
        shape={"dtype": BRAIN, "kv_dtype": E4M3, "head_dim": 80, "group": 7, "num_kv_heads": 1},
    ),
}


def make_sinks(step: PagedBatch) -> Tensor:
    """Sinks of the query heads, among them one of minus infinity, and two far from all scores."""
    sinks = torch.randn(step.q.shape[1], generator=torch.Generator().manual_seed(2))
    sinks[1:4] = torch.tensor([-torch.inf, -1e4, 1e4])
    return sinks.to(step.q.device)


def attention(
    step: PagedBatch, softcap: float | None = None, sinks: Tensor | None = None, *, is_invariant: bool = False
) -> Tensor:
    from baton_kernels.triton.attention import TritonAttention  # read TRITON_INTERPRET
    from baton_kernels.triton.invariant import InvariantTritonAttention

    kernels = InvariantTritonAttention() if is_invariant else TritonAttention()
    return kernels.attention(
        step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale, softcap, sinks=sinks
    )


def largest_error(case: Case) -> float:
    step = make_paged_batch(case.slices, window=case.window, **case.shape)
    sinks = make_sinks(step) if case.has_sinks else None
    expected = attention_reference(
        step.q, step.kv_pool, LAYER, step.batch, step.scale, case.softcap, sinks=sinks
    )
    return float((attention(step, case.softcap, sinks).double() - expected).abs().max())


def difference_when_captured(*, is_invariant: bool = False) -> float:
    """Distance of decodes with padding, and lengths known to the device alone, from the plain ones."""
    step = make_paged_batch([(1, 70), (1, 5)], block_size=16)
    batch = step.batch
    captured = replace(
        batch,
        query_start=torch.arange(5, dtype=torch.int32),
        seq_lens=torch.cat((batch.seq_lens, torch.zeros(2, dtype=torch.int32))),
        block_tables=torch.cat((batch.block_tables, torch.zeros_like(batch.block_tables))),
        query_lens=(1,) * 4,
        context_lens=(1200,) * 4,
    )
    q = torch.cat((step.q, torch.full_like(step.q, torch.nan)))
    sinks = make_sinks(step)
    out = attention(replace(step, batch=captured, q=q), sinks=sinks, is_invariant=is_invariant)
    plain = attention(step, sinks=sinks, is_invariant=is_invariant)
    return float((out - torch.cat((plain, torch.zeros_like(step.q)))).abs().max())


def difference_when_cut() -> float:
    """Distance of a prompt in uneven chunks, each in another batch, from the same prompt at once."""
    whole = make_paged_batch([(60, 60)], window=45, block_size=16, group=3, dtype=HALF)
    tables = whole.batch.block_tables.tolist()
    together = attention(whole)
    largest = 0.0
    for start, stop in ((0, 7), (7, 40), (40, 60)):
        batch = whole.batch.build(
            query_lens=[2, stop - start],
            context_lens=[2, stop],
            block_tables=[*tables, *tables],
            block_size=16,
            window=45,
        )
        q = torch.cat((whole.q[:2], whole.q[start:stop]))
        out = attention(replace(whole, batch=batch, q=q))[2:]
        largest = max(largest, float((out - together[start:stop]).abs().max()))
    return largest


def difference_of_single_tokens() -> float:
    """Distance of a batch-invariant prompt in slices of one token from the same prompt at once."""
    whole = make_paged_batch([(19, 19)], window=15, block_size=16, group=3)
    tables = whole.batch.block_tables.tolist()
    singles = whole.batch.build(
        query_lens=[1] * 19,
        context_lens=list(range(1, 20)),
        block_tables=tables * 19,
        block_size=16,
        window=15,
    )
    sinks = make_sinks(whole)
    together = attention(whole, sinks=sinks, is_invariant=True)
    apart = attention(replace(whole, batch=singles), sinks=sinks, is_invariant=True)
    return float((apart - together).abs().max())


if __name__ == "__main__":
    torch.set_num_threads(1)
    mend_products()
    errors = {name: largest_error(case) for name, case in CASES.items()}
    errors |= {"captured": difference_when_captured(), "cut": difference_when_cut()}
    errors |= {
        "invariant, captured": difference_when_captured(is_invariant=True),
        "invariant, single": difference_of_single_tokens(),
    }
    json.dump(errors, sys.stdout)
