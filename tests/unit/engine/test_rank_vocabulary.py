"""A vocabulary over more ranks than it has parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from baton_core.ranks.rank_layout import ParallelSizes
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.vocabulary import Embedding, Head
from baton_engine.ranks.ranks import Ranks
from baton_kernels.selection import select_kernels
from tests.unit.engine.rank_threads import on_each_rank

VOCAB_SIZE = 9
"""Two tokens for each of five ranks: three of eight have none."""
SIZE = 16
"""Numbers of a hidden state."""


@pytest.mark.parametrize("cpu_kernels", ["auto", "torch"])
def test_ranks_without_a_token_take_part(cpu_kernels: str, tmp_path: Path) -> None:
    table, head = (torch.randn(VOCAB_SIZE, SIZE) for _ in range(2))
    save_file({"embed.weight": table, "lm_head.weight": head}, tmp_path / "model.safetensors")
    kernels = select_kernels("cpu", torch.float32, cpu_kernels).layers

    def compute(ranks: Ranks) -> tuple[Tensor, Tensor]:
        weights = WeightReader(tmp_path, torch.float32)
        embedding = Embedding(weights, "embed.weight", VOCAB_SIZE, SIZE, kernels, ranks)
        rows = embedding(torch.arange(VOCAB_SIZE))
        return rows, Head(weights, None, VOCAB_SIZE, SIZE, kernels, ranks)(rows)

    rows, logits = on_each_rank(ParallelSizes(tensor=8), compute)
    assert torch.equal(rows, table)
    assert torch.allclose(logits, table @ head.T, atol=1e-5)
