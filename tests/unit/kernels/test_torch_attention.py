from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_kernels.reference.pool_rows import padded_width
from baton_kernels.reference.torch_attention import TorchAttention
from tests.attention_reference import attention_reference, write_kv_reference
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def attention(step: PagedBatch) -> torch.Tensor:
    return TorchAttention().attention(step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale)


def assert_equals_reference(step: PagedBatch) -> None:
    out = attention(step)
    expected = attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale)
    assert out.dtype == step.q.dtype
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE[out.dtype])


def test_the_reference_equals_attention_written_out_by_hand() -> None:
    step = make_paged_batch([(2, 3)], num_kv_heads=1, group=1, head_dim=2, block_size=4)
    block = step.batch.block_tables[0, 0]
    k, v = step.kv_pool[block, LAYER, :, 0, :3].double()
    last = (step.q[1, 0].double() * k).sum(1) * step.scale
    weights = last.exp() / last.exp().sum()
    out = attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale)
    torch.testing.assert_close(out[1, 0], weights[0] * v[0] + weights[1] * v[1] + weights[2] * v[2])
    only_itself = attention_reference(step.q, step.kv_pool, LAYER, replace(step.batch, window=1), step.scale)
    torch.testing.assert_close(only_itself[:, 0], v[1:])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("window", [None, 1, 6, 64])
def test_a_mixed_batch_equals_the_reference(dtype: torch.dtype, window: int | None) -> None:
    slices = [(1, 1), (7, 7), (1, 97), (5, 23), (1, 64), (13, 70), (1, 65)]
    assert_equals_reference(make_paged_batch(slices, dtype=dtype, window=window))


@pytest.mark.parametrize("group", [1, 2, 4, 7])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_groups_and_head_sizes_equal_the_reference(group: int, head_dim: int) -> None:
    assert_equals_reference(make_paged_batch([(1, 19), (6, 6), (4, 15)], group=group, head_dim=head_dim))


def test_a_prompt_without_a_prefix_equals_the_reference() -> None:
    assert_equals_reference(make_paged_batch([(37, 37)]))


def test_a_chunk_over_a_prefix_equals_the_reference() -> None:
    assert_equals_reference(make_paged_batch([(9, 50)]))


def slices_of_a_step() -> st.SearchStrategy[list[tuple[int, int]]]:
    lengths = st.tuples(st.integers(1, 20) | st.just(1), st.integers(0, 80))
    return st.lists(lengths.map(lambda pair: (pair[0], sum(pair))), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    slices=slices_of_a_step(),
    group=st.sampled_from([1, 2, 4, 7]),
    num_kv_heads=st.integers(1, 3),
    block_size=st.sampled_from([1, 3, 16, 32]),
    window=st.none() | st.integers(1, 100),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@pytest.mark.slow
def test_any_batch_equals_the_reference(
    slices: Sequence[tuple[int, int]],
    group: int,
    num_kv_heads: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    step = make_paged_batch(
        slices,
        window=window,
        group=group,
        num_kv_heads=num_kv_heads,
        head_dim=16,
        block_size=block_size,
        dtype=dtype,
    )
    assert_equals_reference(step)


@pytest.mark.parametrize("window", [None, 6])
def test_capped_scores_equal_the_reference(window: int | None) -> None:
    step = make_paged_batch([(1, 1), (7, 7), (1, 97), (5, 23)], window=window)
    q = step.q * 20
    out = TorchAttention().attention(q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale, 3.0)
    expected = attention_reference(q, step.kv_pool, LAYER, step.batch, step.scale, 3.0)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(out, attention(replace(step, q=q)), atol=0.1)


def test_slots_outside_the_contexts_are_never_read() -> None:
    step = make_paged_batch([(1, 5), (3, 10)], block_size=4)
    outside = step.kv_pool.isnan()
    assert outside[:, LAYER].any()
    out = attention(step)
    step.kv_pool[outside] = 1e4
    assert out.isfinite().all()
    assert torch.equal(attention(step), out)


@pytest.mark.parametrize("window", [None, 50])
def test_a_sequence_gets_the_same_numbers_alone_and_in_company(window: int | None) -> None:
    slices = [(1, 130), (1, 5), (9, 40), (1, 600), (1, 131)]
    step = make_paged_batch(slices, window=window, block_size=32, head_dim=64, group=7)
    together = attention(step)
    starts = step.batch.query_start.tolist()
    for seq, (query_len, context_len) in enumerate(slices):
        tokens = slice(starts[seq], starts[seq + 1])
        alone = PagedBatch(
            batch=type(step.batch).build(
                query_lens=[query_len],
                context_lens=[context_len],
                block_tables=[step.batch.block_tables[seq].tolist()],
                block_size=32,
                window=window,
            ),
            kv_pool=step.kv_pool,
            q=step.q[tokens],
            k=step.k[tokens],
            v=step.v[tokens],
        )
        torch.testing.assert_close(attention(alone), together[tokens], rtol=0, atol=1e-6)


def test_padding_is_whole_tiles_and_at_most_half_of_a_long_context() -> None:
    assert [padded_width(n) for n in (1, 64, 65, 129, 257, 1024, 1025)] == [64, 64, 128, 192, 384, 1024, 1536]
    assert all(n <= padded_width(n) <= n * 1.5 for n in range(128, 5000))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_writing_equals_the_reference_and_leaves_other_layers_alone(dtype: torch.dtype) -> None:
    step = make_paged_batch([(1, 6), (5, 9)], dtype=dtype)
    new_k, new_v = step.k + 1, step.v - 1
    expected = step.kv_pool.clone()
    write_kv_reference(new_k, new_v, expected, LAYER, step.batch)
    TorchAttention().write(new_k, new_v, step.kv_pool, LAYER, step.batch)
    torch.testing.assert_close(step.kv_pool, expected, rtol=0, atol=0, equal_nan=True)
    assert step.kv_pool[:, 1 - LAYER].isnan().all()


def test_views_of_a_fused_projection_are_taken_as_they_are() -> None:
    step = make_paged_batch([(4, 4), (1, 9), (3, 8)], num_kv_heads=2, group=2)
    fused = torch.cat((step.q, step.k, step.v), dim=1)
    q, k, v = fused.split((4, 2, 2), dim=1)
    kernels = TorchAttention()
    kernels.write(k, v, step.kv_pool, LAYER, step.batch)
    out = kernels.attention(q, k, v, step.kv_pool, LAYER, step.batch, step.scale)
    assert torch.equal(out, attention(step))
