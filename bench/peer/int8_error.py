"""Compares vLLM's 8-bit products on a CPU with the exact sums. Runs in the peer's environment.

    FOLDER/bin/peer python -m bench.peer.int8_error --isa avx2

`FOLDER` is that of make_environment.sh; without `--isa` vLLM's own choice for this CPU is measured. Sums of
8-bit products are whole numbers, so that scaling and rounding to float32 is all that may differ.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from bench.command_line import make_parser

if TYPE_CHECKING:
    from torch import Tensor

IN_FEATURES, OUT_FEATURES, NUM_ROWS = 896, 1024, 64
TOLERANCE = 1e-5
"""Share of the mean size of an output that float32 may round away."""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--isa", choices=("avx2",), help="instruction set of vLLM and oneDNN, as on lesser CPUs"
    )
    arguments = parser.parse_args()
    if arguments.isa:
        os.environ["ONEDNN_MAX_CPU_ISA"] = arguments.isa.upper()
    import torch

    load_kernels(arguments.isa)
    torch.manual_seed(0)
    normal = torch.randn(OUT_FEATURES, IN_FEATURES)
    uniform = torch.rand(OUT_FEATURES, IN_FEATURES) * 2 - 1
    print("| weights and inputs | wrong outputs | mean error, of the mean size |")
    print("|---|---|---|")
    for name, weight, x in (
        ("normal", normal, torch.randn(NUM_ROWS, IN_FEATURES)),
        ("uniform", uniform, torch.rand(NUM_ROWS, IN_FEATURES) * 2 - 1),
    ):
        codes = (weight / weight.abs().amax(1, keepdim=True) * 127).round().to(torch.int8)
        share, mean = errors(codes, x)
        print(f"| {name} | {share:.1%} | {mean:.2%} |")


def load_kernels(isa: str | None) -> None:
    if isa is None:
        from vllm.platforms import current_platform

        current_platform.import_kernels()
        return
    # Not a Python module: importing it registers its operators and then fails, as vLLM too expects.
    with contextlib.suppress(ImportError):
        import vllm._C_AVX2  # noqa: F401


def errors(codes: Tensor, x: Tensor) -> tuple[float, float]:
    """Return the share of outputs that differ, and the mean difference, of `[rows, in] x [out, in]`."""
    import torch

    scales, quantized, row_scales = torch.ones(len(codes), 1), x.to(torch.int8), torch.empty(len(x), 1)
    out, dynamic, asymmetric, cached = torch.empty(len(x), len(codes)), True, False, 1
    handle = torch.ops._C.create_onednn_scaled_mm_handler(
        codes.t(), scales, torch.float32, dynamic, asymmetric, cached
    )
    torch.ops._C.dynamic_scaled_int8_quant(quantized, x, row_scales, None)
    torch.ops._C.onednn_scaled_mm(out, quantized, row_scales, None, None, None, torch.tensor(handle))
    exact = (quantized.double() @ codes.double().t()) * row_scales.double()
    difference, size = (out.double() - exact).abs(), exact.abs().mean()
    return (difference > TOLERANCE * size).double().mean().item(), (difference.mean() / size).item()


if __name__ == "__main__":
    main()
