"""Transformers' attention interface with the engine's own function behind it.

A model is loaded with `ATTENTION`; whoever runs it says with `plugged` what its attention calls do. `TRACED`
is for a dry run: there the models' masks are built too, as markers that tell which tokens a layer sees.
Imported only where Transformers is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import torch
import transformers
from torch import Tensor

ATTENTION: Final = "baton"
TRACED: Final = "baton_traced"
_IGNORED_TENSORS: Final = frozenset({"position_ids", "cache_position"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One layer's attention, as a model of Transformers asks for it."""

    layer: int | None
    query: Tensor
    """`[num_tokens, num_heads, key_dim]`."""
    key: Tensor
    """`[num_tokens, num_kv_heads, key_dim]`."""
    value: Tensor
    """`[num_tokens, num_kv_heads, value_dim]`."""
    mask: Tensor | None
    scale: float
    softcap: float | None
    extra_tensors: tuple[str, ...]
    """Names of further tensors, such as biases, that plain attention does not know."""


AttentionFunction = Callable[[AttentionCall], Tensor]
"""Returns `[num_tokens, num_heads, value_dim]`."""
MaskFunction = Callable[..., Any]
"""Says for batch index, head, query position and key position (tensors) whether the query sees the key."""

_attend: ContextVar[AttentionFunction] = ContextVar("attend")
_make_mask: ContextVar[Callable[[MaskFunction, int | None, torch.device], Tensor]] = ContextVar("make_mask")


def register() -> None:
    """Make both names known to Transformers: call it before a model is built."""
    transformers.AttentionInterface.register(ATTENTION, _attention_forward)
    transformers.AttentionInterface.register(TRACED, _attention_forward)
    transformers.AttentionMaskInterface.register(TRACED, _mask_forward)


@contextmanager
def plugged(
    attend: AttentionFunction,
    make_mask: Callable[[MaskFunction, int | None, torch.device], Tensor] | None = None,
) -> Iterator[None]:
    """Let this thread's attention calls go to `attend`; `make_mask` is asked under `TRACED` only."""
    token = _attend.set(attend)
    mask_token = _make_mask.set(make_mask) if make_mask is not None else None
    try:
        yield
    finally:
        _attend.reset(token)
        if mask_token is not None:
            _make_mask.reset(mask_token)


def _attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Have the signature that the interface prescribes: `[1, num_heads, num_tokens, head_dim]` in."""
    layer = getattr(module, "layer_idx", None)
    call = AttentionCall(
        layer=layer if isinstance(layer, int) else None,
        query=query[0].transpose(0, 1),
        key=key[0].transpose(0, 1),
        value=value[0].transpose(0, 1),
        mask=attention_mask,
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        softcap=softcap,
        extra_tensors=tuple(
            name
            for name, option in options.items()
            if isinstance(option, Tensor) and name not in _IGNORED_TENSORS
        ),
    )
    return _attend.get()(call)[None], None


def _mask_forward(
    *, mask_function: MaskFunction, device: torch.device, local_size: int | None = None, **_: Any
) -> Tensor:
    return _make_mask.get()(mask_function, local_size, device)
