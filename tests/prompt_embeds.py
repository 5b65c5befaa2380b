"""Embeddings for prompts, and how clients send them."""

from __future__ import annotations

import base64
import io

import safetensors.torch
import torch
from torch import Tensor

from baton_core.prompt_embeds import PromptEmbeds


def embeds_of(rows: Tensor, start: int = 0) -> PromptEmbeds:
    """Return `rows` `[num_tokens, hidden_size]` for a request."""
    data = rows.contiguous().view(torch.uint8).numpy().tobytes()
    dtype = str(rows.dtype).removeprefix("torch.")
    return PromptEmbeds.of(data, dtype=dtype, hidden_size=rows.shape[-1], start=start)


def torch_file(tensor: object, **options: object) -> bytes:
    """Return what `torch.save` writes."""
    file = io.BytesIO()
    torch.save(tensor, file, **options)  # type: ignore[arg-type]
    return file.getvalue()


def safetensors_file(**tensors: Tensor) -> bytes:
    return safetensors.torch.save(tensors)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
