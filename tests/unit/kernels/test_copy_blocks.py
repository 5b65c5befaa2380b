import torch

from baton_kernels.reference.torch_attention import TorchAttention


def make_pool() -> torch.Tensor:
    return torch.arange(4 * 2 * 2 * 2 * 3 * 5, dtype=torch.bfloat16).view(4, 2, 2, 2, 3, 5)


def test_a_copy_takes_all_layers_and_heads_and_nothing_else() -> None:
    pool, before = make_pool(), make_pool()
    TorchAttention().copy_blocks(pool, [(3, 1)])
    assert torch.equal(pool, before[[0, 3, 2, 3]])


def test_a_block_that_is_source_and_destination_is_read_before_it_is_written() -> None:
    pool, before = make_pool(), make_pool()
    TorchAttention().copy_blocks(pool, [(0, 1), (1, 2), (2, 0)])
    assert torch.equal(pool, before[[2, 0, 1, 3]])


def test_one_source_may_have_several_destinations() -> None:
    pool, before = make_pool(), make_pool()
    TorchAttention().copy_blocks(pool, [(2, 0), (2, 3)])
    assert torch.equal(pool, before[[2, 1, 2, 2]])


def test_no_pairs_change_nothing() -> None:
    pool, before = make_pool(), make_pool()
    TorchAttention().copy_blocks(pool, [])
    assert torch.equal(pool, before)
