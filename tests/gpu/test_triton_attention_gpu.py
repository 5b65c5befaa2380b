"""The attention kernels on a device, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton_kernels.selection import select_invariant_kernels, select_kernels
from baton_kernels.triton.kernel_variant import FP8_ARCH, device_arch
from tests.attention_reference import attention_reference
from tests.unit.kernels.interpreted_attention import CASES, Case, make_sinks
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FLOAT32_TOLERANCE = 2e-5
TOLERANCE = {torch.float32: FLOAT32_TOLERANCE, torch.bfloat16: 2e-2, torch.float16: 3e-3}
E4M3 = torch.float8_e4m3fn
PAIRS = [*((dtype, dtype) for dtype in TOLERANCE), (torch.bfloat16, E4M3), (torch.float16, E4M3)]


def attention(
    step: PagedBatch, softcap: float | None = None, sinks: Tensor | None = None, *, is_invariant: bool = False
) -> Tensor:
    kernels = select_kernels("cuda").attention
    if is_invariant:
        head_dim = step.q.shape[-1]
        kernels = select_invariant_kernels("cuda", step.q.dtype, head_dim).attention
    return kernels.attention(
        step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale, softcap, sinks=sinks
    )


def assert_equals_reference(
    step: PagedBatch, softcap: float | None = None, sinks: Tensor | None = None
) -> None:
    if step.kv_pool.dtype == E4M3 and device_arch() < FP8_ARCH:
        pytest.skip("the device does not convert e4m3")
    out = attention(step, softcap, sinks).cpu()
    expected = attention_reference(
        step.q.cpu(),
        step.kv_pool.cpu(),
        LAYER,
        step.batch,
        step.scale,
        softcap,
        sinks=None if sinks is None else sinks.cpu(),
    )
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE[out.dtype])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_the_interpreter_computes_the_device_does(case: Case) -> None:
    step = make_paged_batch(case.slices, window=case.window, device="cuda", **case.shape)
    assert_equals_reference(step, case.softcap, make_sinks(step) if case.has_sinks else None)


@pytest.mark.parametrize(("dtype", "kv_dtype"), PAIRS, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 112, 128, 256])
def test_decodes_and_chunks_of_any_head_size_equal_the_reference(
    dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int
) -> None:
    step = make_paged_batch(
        [(1, 1), (70, 90), (1, 512), (1, 1500), (130, 700), (2, 2)],
        dtype=dtype,
        kv_dtype=kv_dtype,
        head_dim=head_dim,
        group=7,
        num_kv_heads=1,
        block_size=32,
        device="cuda",
    )
    assert_equals_reference(step)


@pytest.mark.parametrize("group", [1, 4, 5, 16, 20, 71])
def test_groups_equal_the_reference(group: int) -> None:
    step = make_paged_batch(
        [(1, 40), (1, 700), (60, 200)],
        group=group,
        num_kv_heads=2,
        head_dim=64,
        block_size=16,
        dtype=torch.bfloat16,
        device="cuda",
    )
    assert_equals_reference(step)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [1, 100, 513])
def test_windows_and_caps_equal_the_reference(window: int, softcap: float | None) -> None:
    step = make_paged_batch(
        [(1, 40), (1, 700), (1, 1100), (200, 600)], head_dim=64, block_size=32, device="cuda", window=window
    )
    assert_equals_reference(step, softcap)


def only_slice(step: PagedBatch, seq: int, start: int, stop: int) -> PagedBatch:
    """The tokens of sequence `seq` at positions `start` to `stop`, in a batch of their own."""
    batch, block_size = step.batch, step.kv_pool.shape[4]
    first = int(batch.query_start[seq]) + start - (batch.context_lens[seq] - batch.query_lens[seq])
    rows = slice(first, first + stop - start)
    alone = batch.build(
        query_lens=[stop - start],
        context_lens=[stop],
        block_tables=[batch.block_tables[seq].tolist()],
        block_size=block_size,
        window=batch.window,
        device="cuda",
    )
    return replace(step, batch=alone, q=step.q[rows], k=step.k[rows], v=step.v[rows])


def test_decodes_of_very_different_lengths_equal_the_reference() -> None:
    step = make_paged_batch(
        [(1, 9000), *[(1, 3 + place) for place in range(40)]],
        head_dim=128,
        group=4,
        block_size=32,
        dtype=torch.bfloat16,
        device="cuda",
    )
    assert_equals_reference(step)


def test_an_invariant_decode_gets_the_same_bits_alone_and_in_company() -> None:
    lengths = (1300, 5, 600)
    step = make_paged_batch(
        [(1, length) for length in lengths],
        head_dim=128,
        group=4,
        block_size=32,
        dtype=torch.bfloat16,
        device="cuda",
    )
    together = attention(step, is_invariant=True)
    for seq, length in enumerate(lengths):
        alone = attention(only_slice(step, seq, length - 1, length), is_invariant=True)
        assert torch.equal(alone[0], together[seq])


def test_a_prompt_gets_the_same_bits_however_it_is_cut() -> None:
    step = make_paged_batch(
        [(300, 300)], head_dim=128, group=7, block_size=32, dtype=torch.bfloat16, window=170, device="cuda"
    )
    whole = attention(step)
    for start, stop in ((0, 64), (64, 129), (129, 300)):
        assert torch.equal(attention(only_slice(step, 0, start, stop)), whole[start:stop])


def test_a_captured_batch_is_replayed_at_other_lengths_and_with_padding() -> None:
    step = make_paged_batch(
        [(1, 900), (1, 30), (1, 450)], head_dim=64, block_size=32, dtype=torch.bfloat16, device="cuda"
    )
    captured = replace(step, batch=replace(step.batch, context_lens=(2048,) * 3))
    attention(captured)  # compiles, which a capture must not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(captured)
    graph.replay()
    assert torch.equal(out, attention(step))
    shorter = replace(step.batch, seq_lens=step.batch.seq_lens // 2, context_lens=(450, 15, 225))
    expected = attention(replace(step, batch=shorter))
    step.batch.seq_lens.copy_(torch.tensor([450, 15, 0]))
    graph.replay()
    assert torch.equal(out[:2], expected[:2])
    assert torch.equal(out[2], torch.zeros_like(out[2]))
