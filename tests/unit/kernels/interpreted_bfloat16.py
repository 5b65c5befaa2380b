"""Bfloat16 in Triton's interpreter, for the processes that run kernels in it."""

from __future__ import annotations

from typing import Any

import numpy as np


def mend_bfloat16_products() -> None:
    """The interpreter keeps bfloat16 as its bit patterns and multiplies those; give `dot` float32 instead."""
    import triton.language as tl
    from triton.runtime import interpreter

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    create_dot = interpreter.InterpreterBuilder.create_dot

    def create_widened_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return create_dot(builder, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = create_widened_dot
