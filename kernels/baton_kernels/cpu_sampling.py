"""Sampling on a CPU in C++: a row costs a few passes over its logits, and noise where a token may win. The
struct mirrors that of cpu/draw.h.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from baton_kernels.cpu_library import CpuLibrary
from baton_kernels.sampling import SampleBatch, SamplingKernels


class Draw(ctypes.Structure):
    """One token from each row of logits."""

    _fields_ = (
        ("logits", c_void_p),
        ("seeds", c_void_p),
        ("positions", c_void_p),
        ("top_k", c_void_p),
        ("temperature", c_void_p),
        ("top_p", c_void_p),
        ("min_score", c_void_p),
        ("tokens", c_void_p),
        ("stride", c_int64),
        ("num_rows", c_int64),
        ("vocab_size", c_int64),
        ("num_threads", c_int64),
        ("is_bfloat16", c_int32),
    )


class CpuSampling(SamplingKernels):
    """`SamplingKernels` in C++, for logits of any type."""

    def __init__(self, library: CpuLibrary) -> None:
        self._draw = library.function("baton_draw")

    def draw(self, logits: Tensor, batch: SampleBatch) -> Tensor:
        if logits.dtype not in (torch.float32, torch.bfloat16):
            logits = logits.float()
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        tokens = torch.empty(len(logits), dtype=torch.int64)
        step = Draw(
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
        if self._draw(step):
            raise MemoryError("no memory for the scores of a row")
        return tokens
