"""Kernels of the batch-invariant mode on a CPU: a token's numbers do not depend on what shares its step.

Each number of a linear layer is one chain of multiply-adds over the inputs, in order. Attention folds a
query's keys in splits of 64 tokens, in order, whether it is a single token or one of a chunk. Functions and
norms take each row by itself. So neither the number of rows or threads nor the place of a row in its batch
changes a bit; the build does, through the width of its vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu_attention import CpuAttention, dense_rows
from baton_kernels.cpu_invariant_library import PANEL, InvariantLibrary
from baton_kernels.cpu_invariant_library import Product as ProductStep
from baton_kernels.cpu_layers import CpuLayers
from baton_kernels.cpu_library import CpuLibrary
from baton_kernels.cpu_memory import RESULTS
from baton_kernels.interface import AttentionBatch, Function


class InvariantCpuAttention(CpuAttention):
    """One way to attend for slices of any length; the cache is written as by `CpuAttention`."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scale: float,
        softcap: float | None = None,
    ) -> Tensor:
        q = dense_rows(q)
        out = RESULTS.empty(q.shape, q.dtype)
        self.attend_slices(out, q, kv_pool, layer, batch, scale, softcap, least_tokens=1)
        return out


class PanelProduct:
    """A linear layer whose weight lies in panels of `PANEL` outputs: `[num_panels, in_features, PANEL]`."""

    def __init__(self, library: InvariantLibrary, weight: Tensor, bias: Tensor | None) -> None:
        self._library = library
        self._out_features = len(weight)
        missing = -len(weight) % PANEL
        rows = functional.pad(weight, (0, 0, 0, missing)) if missing else weight
        self._panels = rows.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()
        self._bias = None if bias is None else bias.contiguous()

    @property
    def packed_bytes(self) -> int:
        return self._panels.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = RESULTS.empty((len(x), self._out_features), x.dtype)
        step = ProductStep(
            x=x.data_ptr(),
            panels=self._panels.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            num_rows=len(x),
            in_features=x.shape[1],
            out_features=self._out_features,
            num_threads=torch.get_num_threads(),
            is_bfloat16=x.dtype == torch.bfloat16,
        )
        self._library.multiply(step)
        return out


class InvariantCpuLayers(CpuLayers):
    """Rows of float32 and bfloat16, computed in float32; functions and layer norms are rounded once."""

    def __init__(self, library: CpuLibrary) -> None:
        super().__init__(library)
        self._invariant = InvariantLibrary(library)

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        return self.normalise(x, None, weight, bias, eps, is_centered=True)

    def apply(self, function: Function, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return self.apply_rows(function, rows, None).view(x.shape)

    def apply_mul(self, function: Function, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.contiguous().chunk(2, dim=-1)
        return self.apply_rows(function, gate, up)

    def product(self, weight: Tensor, bias: Tensor | None) -> PanelProduct:
        return PanelProduct(self._invariant, weight, bias)
