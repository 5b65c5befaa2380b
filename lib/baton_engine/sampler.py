"""From what the scheduler says of each draw to the tokens drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_core.step_plan import SampleSpec
from baton_kernels.sampling import SampleBatch, SamplingKernels
from baton_kernels.torch_sampling import TorchSampling

_TORCH = TorchSampling()


def sample(logits: Tensor, specs: Sequence[SampleSpec], kernels: SamplingKernels = _TORCH) -> Tensor:
    """Draw one token per row of `logits` `[num_rows, vocab_size]`; return `[num_rows] int64`."""
    return kernels.draw(logits, sample_batch(specs, logits.device))


def sample_batch(specs: Sequence[SampleSpec], device: torch.device | str = "cpu") -> SampleBatch:
    """The rows' parameters on the device."""
    return SampleBatch.build(
        seeds=[spec.seed for spec in specs],
        positions=[spec.position for spec in specs],
        top_k=[spec.top_k for spec in specs],
        temperature=[spec.temperature for spec in specs],
        top_p=[spec.top_p for spec in specs],
        min_p=[spec.min_p for spec in specs],
        device=device,
    )
