"""A model as torch's modules show one, for functions that look at its tensors.

These are the model's own, as its kernels have them: Q, K and V lie in one, and on a CPU most are packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from torch import Tensor, nn

_SHARED: Final = ("_kernels", "_library", "_ranks", "_links", "taps")
"""Attributes that are no part of the model."""


def module_view(model: Any, name: str) -> nn.Module:
    """Return a view of `model` whose class has that name; a model that Transformers runs is shown itself."""
    whole = getattr(model, "_model", None)
    return whole if isinstance(whole, nn.Module) else _View.of(model, name)


class _View(nn.Module):
    """One part of a model; what a view lacks, such as `config`, `dtype` and methods, the part has."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_part", part)
        for name, value in _attributes(part):
            if isinstance(value, Tensor):
                self.register_parameter(name, nn.Parameter(value, requires_grad=False))
            elif isinstance(value, list | tuple):
                self.add_module(name, nn.ModuleList(_View.of(one) for one in value))
            else:
                self.add_module(name, _View.of(value))

    @classmethod
    def of(cls, part: Any, name: str | None = None) -> _View:
        """Return the view of a part, of a class with its name: so it is printed."""
        named: type[_View] = type(name or type(part).__name__.lstrip("_"), (cls,), {})
        return named(part)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_part"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the part computes."""
        return self._part.forward(*args, **kwargs)


def _attributes(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield tensors and parts with tensors, by their names."""
    values: Mapping[str, Any] = part.keywords if isinstance(part, partial) else vars(part)
    for name, value in values.items():
        if name in _SHARED or not _has_tensors(value):
            continue
        yield name.lstrip("_"), value


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    if isinstance(value, list | tuple):
        return any(map(_has_tensors, value))
    return hasattr(value, "__dict__") and not isinstance(value, type) and any(_attributes(value))
