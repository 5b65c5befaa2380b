"""Kernels of the batch-invariant mode on a CPU: a token's numbers do not depend on the rest of its step.

Linear layers are packed in every build and at every size: each number is one chain of multiply-adds over the
inputs, in pairs for bfloat16 with AVX512-BF16 and in tiles with AMX, in order. Attention folds a query's keys
in splits of 64 tokens, in order, whether it is a single token or one of a chunk. Functions and norms take
each row by itself. So neither the number of rows or threads nor the place of a row in its batch changes a
bit; the build does, through the width of its vectors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from baton_kernels.cpu.attention import DTYPES, CpuAttention
from baton_kernels.cpu.layers import CpuLayers
from baton_kernels.cpu.packed import PackedProduct
from baton_kernels.interface.kernels import AttentionBatch, Function


class InvariantCpuAttention(CpuAttention):
    """One way to attend for slices of any length; the cache is written as by `CpuAttention`."""

    def _attend(self, batch: AttentionBatch, shared: dict[str, Any]) -> None:
        self._attend_slices(batch, shared, least_tokens=1)

    def _takes_prompts(self, dtype: torch.dtype) -> bool:
        """In torch bits depend on the number of threads, and on how many neighbours have one length."""
        return dtype in DTYPES


class InvariantCpuLayers(CpuLayers):
    """Rows of float32 and bfloat16, computed in float32; functions and layer norms are rounded once."""

    is_invariant = True

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        return self.normalise(x, None, weight, bias, eps, is_centered=True)

    def apply(self, function: Function, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return self.apply_rows(function, rows, None).view(x.shape)

    def apply_mul(self, function: Function, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.contiguous().chunk(2, dim=-1)
        return self.apply_rows(function, gate, up)

    def product(self, weight: Tensor, bias: Tensor | None) -> PackedProduct:
        return PackedProduct(self._library, weight, bias)
