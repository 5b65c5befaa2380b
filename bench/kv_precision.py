"""Perplexity of a model whose keys and values are rounded as an 8-bit KV cache would have them, and bytes.

    python -m bench.kv_precision corpus.jsonl --documents 8

The corpus and the score are those of bench.perplexity. The model computes in float32 with torch, so that the
rounding of keys and values is all that differs. `per_token_head` types have a scale of float32 for each token
and head, the largest magnitude over the largest code; fp8_e4m3 has the scale 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor

from baton_kernels.cpu import selection
from baton_kernels.cpu.variants import TORCH
from baton_kernels.interface.cache_dtype import encode
from baton_kernels.reference.torch_attention import TorchAttention
from bench.perplexity import Score, parse_arguments, read_held_out, score

Rounding = Callable[[Tensor], Tensor]
SCALE_BYTES: Final = 4


def _exact(x: Tensor) -> Tensor:
    return x


def _e4m3(x: Tensor) -> Tensor:
    return encode(x, torch.float8_e4m3fn).to(x.dtype)


def _e4m3_per_token_head(x: Tensor) -> Tensor:
    scales = _scales(x, torch.finfo(torch.float8_e4m3fn).max)
    return _e4m3(x / scales) * scales


def _int8_per_token_head(x: Tensor) -> Tensor:
    scales = _scales(x, 127.0)
    return (x / scales).round() * scales


def _scales(x: Tensor, largest: float) -> Tensor:
    return x.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny) / largest


WAYS: Final[dict[str, tuple[Rounding, int, int]]] = {
    "float32": (_exact, 4, 0),
    "fp8_e4m3": (_e4m3, 1, 0),
    "fp8_per_token_head": (_e4m3_per_token_head, 1, SCALE_BYTES),
    "int8_per_token_head": (_int8_per_token_head, 1, SCALE_BYTES),
}
"""Rounding, bytes of a number, and further bytes of a head."""


class RoundedAttention(TorchAttention):
    """Attention to keys and values as a cache of a type would have them."""

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self._round = rounding
        self._squares = torch.zeros(2, dtype=torch.float64)

    @property
    def relative_error(self) -> float:
        """Root of the mean square error of keys and values, over that of the values themselves."""
        error, whole = self._squares.tolist()
        return float((error / whole) ** 0.5)

    def write(self, k: Tensor, v: Tensor, *arguments: Any, **options: Any) -> None:
        super().write(self._measured(k), self._measured(v), *arguments, **options)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return super().attention(q, self._round(k), self._round(v), *arguments, **options)

    def _measured(self, x: Tensor) -> Tensor:
        rounded = self._round(x)
        self._squares += torch.stack([(rounded - x).double().square().sum(), x.double().square().sum()])
        return rounded


def main() -> None:
    arguments = parse_arguments(__doc__)
    os.environ[selection.INSTEAD_OF_AUTO] = TORCH
    texts = read_held_out(arguments.corpus)[: arguments.documents]
    print(f"{'':20} perplexity   against float32   error of K and V   bytes of a head of 32, of 128")
    first: Score | None = None
    for way, (rounding, number_bytes, head_bytes) in WAYS.items():
        attention = RoundedAttention(rounding)
        with patch.object(selection, "TorchAttention", return_value=attention):
            one = score(arguments, texts, "float32")
        first = first or one
        sizes = ", ".join(f"{2 * (head_dim * number_bytes + head_bytes)}" for head_dim in (32, 128))
        change = one.perplexity / first.perplexity - 1
        print(
            f"{way:20} {one.perplexity:10.3f}   {change:+15.3%}   {attention.relative_error:16.3%}   {sizes}"
        )


if __name__ == "__main__":
    main()
