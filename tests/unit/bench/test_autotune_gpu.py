"""`bench.autotune_gpu` chooses the best candidates by their times."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.triton.kernel_configs import DEFAULT_ARCH, KernelConfig, kernel_config
from bench.autotune_gpu import HEADS, KERNELS, Tuned, best, row_of


@pytest.mark.parametrize("tuned", KERNELS, ids=lambda tuned: tuned.name)
def test_the_defaults_are_candidates_so_that_nothing_gets_slower(tuned: Tuned) -> None:
    defaults = {kernel_config(tuned.name, torch.bfloat16, h.head_dim, DEFAULT_ARCH) for h in HEADS}
    assert defaults <= set(tuned.candidates())


@pytest.mark.parametrize("tuned", KERNELS, ids=lambda tuned: tuned.name)
def test_a_row_of_the_table_is_read_as_the_configuration_that_it_was_written_for(tuned: Tuned) -> None:
    assert all(KernelConfig(**row_of(config)) == config for config in tuned.candidates())


def test_the_best_is_judged_by_ratios_not_by_the_longest_step() -> None:
    first, second, *_ = KERNELS[0].candidates()
    assert best({first: (1.0, 100.0), second: (0.5, 110.0)}) == second
    assert best({first: (1.0, 100.0), second: (1.0, 101.0)}) == first
