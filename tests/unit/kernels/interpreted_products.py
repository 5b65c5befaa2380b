"""Products in Triton's interpreter, for the processes that run kernels in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def mend_products() -> None:
    """Make `dot` of the interpreter behave as on a GPU.

    The interpreter keeps bfloat16 as its bit patterns and multiplies those: it gets float32 instead. And it
    multiplies with numpy's BLAS, where a row's last bits may depend on the rows beside it (OpenBLAS on CPUs
    with AVX2 and without AVX-512): every number becomes a sum in one order.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    def numbers(operand: Any) -> npt.NDArray[Any]:
        data: npt.NDArray[Any] = operand.data
        if operand.dtype.scalar != tl.bfloat16:
            return data
        return (data.astype(np.uint32) << 16).view(np.float32)

    def create_dot(builder: Any, a: Any, b: Any, sums: Any, *options: Any) -> Any:
        product = np.einsum("...ij,...jk->...ik", numbers(a), numbers(b), dtype=sums.data.dtype)
        return interpreter.TensorHandle(product + sums.data, sums.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot
