"""Muon: momentum whose update is brought near an orthogonal matrix, for the matrices of the layers.

In float32 throughout: torch.optim.Muon works in bfloat16, which is slow on a CPU that must emulate it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def near_orthogonal(matrix: torch.Tensor, steps: int = 4) -> torch.Tensor:
    """Newton-Schulz iteration of the fifth order: pushes every singular value towards one."""
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide is matrix else x.T


class Muon(torch.optim.Optimizer):
    """One learning rate for all its matrices, Nesterov momentum, decoupled weight decay."""

    def __init__(
        self, parameters: Iterable[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Updates every matrix that has a gradient."""
        for group in self.param_groups:
            momentum = group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - momentum)
                update = near_orthogonal(parameter.grad.lerp(buffer, momentum))
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)
