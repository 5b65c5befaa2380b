import pytest
import torch

from baton_kernels.interface import AttentionBatch
from baton_kernels.selection import select_kernels
from baton_kernels.torch_attention import TorchAttention


def test_a_batch_places_every_token_of_every_slice() -> None:
    batch = AttentionBatch.build(
        query_lens=[1, 3], context_lens=[6, 5], block_tables=[[7, 2], [4, 9, 1]], block_size=4
    )
    assert batch.positions.tolist() == [5, 2, 3, 4]
    assert batch.slot_mapping.tolist() == [2 * 4 + 1, 4 * 4 + 2, 4 * 4 + 3, 9 * 4]
    assert batch.query_start.tolist() == [0, 1, 4]
    assert batch.seq_lens.tolist() == [6, 5]
    assert batch.block_tables.tolist() == [[7, 2, 0], [4, 9, 1]]
    assert (batch.query_lens, batch.context_lens) == ((1, 3), (6, 5))
    assert batch.slot_mapping.dtype == torch.int64
    for tensor in (batch.query_start, batch.seq_lens, batch.block_tables):
        assert tensor.dtype == torch.int32


@pytest.mark.parametrize(
    ("query_len", "context_len", "blocks"),
    [(0, 3, [1]), (4, 3, [1]), (1, 5, [1])],
    ids=["empty slice", "slice beyond its context", "too few blocks"],
)
def test_an_impossible_slice_is_refused(query_len: int, context_len: int, blocks: list[int]) -> None:
    with pytest.raises(
        ValueError, match=f"slice of {query_len} tokens, context {context_len}, 1 blocks of 4"
    ):
        AttentionBatch.build(
            query_lens=[query_len], context_lens=[context_len], block_tables=[blocks], block_size=4
        )


def test_a_cpu_gets_the_torch_path() -> None:
    assert type(select_kernels("cpu")) is TorchAttention
