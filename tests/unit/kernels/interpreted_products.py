"""Products in Triton's interpreter, for the processes that run kernels in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from baton_kernels.interface.quantized import TABLES, Element


def mend_products() -> None:
    """Make `dot` of the interpreter behave as on a GPU, and give it `dot_scaled`, which it lacks.

    The interpreter keeps bfloat16 as its bit patterns and multiplies those: it gets float32 instead. And it
    multiplies with numpy's BLAS, where a row's last bits may depend on the rows beside it (OpenBLAS on CPUs
    with AVX2 and without AVX-512): every number becomes a sum in one order.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    def numbers(operand: Any) -> npt.NDArray[Any]:
        data: npt.NDArray[Any] = operand.data
        if operand.dtype.scalar == tl.float8e4nv:
            return _values(data, torch.float8_e4m3fn)
        if operand.dtype.scalar != tl.bfloat16:
            return data
        return (data.astype(np.uint32) << 16).view(np.float32)

    def create_dot(builder: Any, a: Any, b: Any, sums: Any, *options: Any) -> Any:
        product = np.einsum("...ij,...jk->...ik", numbers(a), numbers(b), dtype=sums.data.dtype)
        return interpreter.TensorHandle(product + sums.data, sums.dtype.scalar)

    def scaled(operand: Any, scales: Any) -> npt.NDArray[Any]:
        """Values `[rows, inputs]` of codes, of e2m1 where they are bytes."""
        values = numbers(operand) if operand.dtype.scalar == tl.float8e4nv else _pairs(operand.data)
        is_e8m0 = scales.dtype.scalar == tl.uint8
        factors = _values(scales.data, torch.float8_e8m0fnu) if is_e8m0 else numbers(scales)
        return values * factors.repeat(values.shape[1] // factors.shape[1], axis=1)

    def dot_scaled(
        x: Any, x_scales: Any, x_format: str, y: Any, y_scales: Any, y_format: str, sums: Any, **options: Any
    ) -> Any:
        left, right = scaled(x.handle, x_scales.handle), scaled(y.T.handle, y_scales.handle)
        assert (x.dtype == tl.uint8, y.dtype == tl.uint8) == (x_format == "e2m1", y_format == "e2m1")
        product = np.einsum("ij,kj->ik", left, right, dtype=np.float32)
        return tl.tensor(interpreter.TensorHandle(product + sums.handle.data, tl.float32), sums.type)

    interpreter.InterpreterBuilder.create_dot = create_dot
    tl.dot_scaled = dot_scaled


def _values(codes: npt.NDArray[Any], dtype: torch.dtype) -> npt.NDArray[Any]:
    return torch.from_numpy(codes.view(np.uint8).copy()).view(dtype).float().numpy()


def _pairs(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values of e2m1, two in a byte, the even one in the lower bits."""
    table = np.array(TABLES[Element.E2M1], dtype=np.float32)
    return table[np.stack((codes & 15, codes >> 4), axis=-1).reshape(len(codes), -1)]
