import pytest
import torch

from baton_kernels.interface import AttentionBatch
from baton_kernels.reference import attend_reference
from baton_kernels.selection import select_kernels
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def attend(step: PagedBatch) -> torch.Tensor:
    kernels = select_kernels("cuda")
    return kernels.attend(step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale)


def assert_equals_reference(step: PagedBatch) -> None:
    out = attend(step).cpu()
    pool, q = step.kv_pool.cpu(), step.q.cpu()
    expected = attend_reference(q, pool, LAYER, step.batch, step.scale)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE[out.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 128, 256])
def test_decodes_equal_the_reference(dtype: torch.dtype, head_dim: int) -> None:
    slices = [(1, 1), (1, 33), (1, 512), (1, 1500)]
    assert_equals_reference(make_paged_batch(slices, dtype=dtype, head_dim=head_dim, group=7, device="cuda"))


@pytest.mark.parametrize("group", [1, 4, 16, 20])
def test_groups_equal_the_reference(group: int) -> None:
    step = make_paged_batch([(1, 40), (1, 700)], group=group, head_dim=64, block_size=32, device="cuda")
    assert_equals_reference(step)


@pytest.mark.parametrize("window", [1, 100, 513])
def test_windows_equal_the_reference(window: int) -> None:
    step = make_paged_batch(
        [(1, 40), (1, 700), (1, 1100)], head_dim=64, block_size=32, device="cuda", window=window
    )
    assert_equals_reference(step)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_chunks_between_decodes_equal_the_reference(dtype: torch.dtype, window: int | None) -> None:
    slices = [(1, 90), (17, 17), (1, 8), (9, 100)]
    assert_equals_reference(make_paged_batch(slices, dtype=dtype, head_dim=64, device="cuda", window=window))


def test_a_decode_gets_the_same_bits_alone_and_in_company() -> None:
    lengths = (1300, 5, 600)
    step = make_paged_batch(
        [(1, length) for length in lengths],
        head_dim=128,
        group=4,
        block_size=32,
        dtype=torch.bfloat16,
        device="cuda",
    )
    together = attend(step)
    for seq, length in enumerate(lengths):
        batch = AttentionBatch.build(
            query_lens=[1],
            context_lens=[length],
            block_tables=[step.batch.block_tables[seq].tolist()],
            block_size=32,
            device="cuda",
        )
        row = slice(seq, seq + 1)
        alone = PagedBatch(batch=batch, kv_pool=step.kv_pool, q=step.q[row], k=step.k[row], v=step.v[row])
        assert torch.equal(attend(alone)[0], together[seq])
