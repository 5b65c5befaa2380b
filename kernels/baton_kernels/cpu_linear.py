"""Linear layers of bfloat16 on a CPU without bfloat16 arithmetic: widened on the way, computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.cpu_library import CpuLibrary, LinearProduct


def widened_linear(library: CpuLibrary, x: Tensor, *, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias` `[num_rows, out_features] bfloat16`, rounded once.

    `x` is `[num_rows, in_features]`, `weight` `[out_features, in_features]`, contiguous like `bias`; all are
    bfloat16. A row's result does not depend on the other rows.
    """
    if x.stride(-1) != 1:
        x = x.contiguous()
    num_rows, in_features = x.shape
    out = torch.empty(num_rows, len(weight), dtype=torch.bfloat16)
    step = LinearProduct(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        out=out.data_ptr(),
        x_stride=x.stride(0),
        num_rows=num_rows,
        in_features=in_features,
        out_features=len(weight),
        num_threads=torch.get_num_threads(),
    )
    library.linear(step)
    return out
