"""Rotary position embeddings in the half-split form: dimension i pairs with dimension i + rotary_dim / 2."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `x` `[num_tokens, num_heads, head_dim]` rotated, as a new tensor.

    `cos` and `sin` are `[num_tokens, 1, rotary_dim]`; dimensions from `rotary_dim` on pass unchanged.
    """
    rotary_dim = cos.shape[-1]
    turned = x if rotary_dim == x.shape[-1] else x[..., :rotary_dim]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return turned if rotary_dim == x.shape[-1] else torch.cat((turned, x[..., rotary_dim:]), dim=-1)
