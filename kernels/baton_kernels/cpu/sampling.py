"""Sampling on a CPU in C++: a row costs a few passes over its logits, and noise where a token may win."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.structs import SampleArgs
from baton_kernels.interface.sampling import SampleBatch, SamplingKernels


class CpuSampling(SamplingKernels):
    """`SamplingKernels` in C++, for logits of any dtype."""

    is_recordable = True

    def __init__(self, library: CpuLibrary) -> None:
        self._library = library

    def sample(self, logits: Tensor, batch: SampleBatch) -> Tensor:
        if logits.dtype not in (torch.float32, torch.bfloat16):
            logits = logits.float()
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        tokens = torch.empty(len(logits), dtype=torch.int64)
        args = SampleArgs(
            logits=logits.data_ptr(),
            seeds=batch.seeds.data_ptr(),
            positions=batch.positions.data_ptr(),
            top_k=batch.top_k.data_ptr(),
            temperature=batch.temperature.data_ptr(),
            top_p=batch.top_p.data_ptr(),
            min_score=batch.min_score.data_ptr(),
            tokens=tokens.data_ptr(),
            stride=logits.stride(0),
            num_rows=len(logits),
            vocab_size=logits.shape[1],
            num_threads=torch.get_num_threads(),
            is_bfloat16=logits.dtype == torch.bfloat16,
        )
        self._library.run(args)
        return tokens
