import pytest
import torch

from baton_kernels.interface.kernels import AttentionBatch


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


def test_groups_share_what_is_the_same_for_all_of_them() -> None:
    full, window = AttentionBatch.build_groups(
        query_lens=[2, 1],
        context_lens=[6, 3],
        block_tables=[[[7, 2], [3]], [[-1, 5], [4]]],
        windows=[None, 3],
        block_size=4,
    )
    assert full.positions is window.positions
    assert full.seq_lens is window.seq_lens
    assert full.query_start is window.query_start
    assert full.slot_mapping.tolist() == [2 * 4, 2 * 4 + 1, 3 * 4 + 2]
    assert window.slot_mapping.tolist() == [5 * 4, 5 * 4 + 1, 4 * 4 + 2]
    assert window.block_tables.tolist() == [[0, 5], [4, 0]]
    assert (full.window, window.window) == (None, 3)


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
