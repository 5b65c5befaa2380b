"""Reads the embeddings of clients: base64 of a file in torch's format or in that of safetensors."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from baton_core.errors import ContextLengthError, InvalidRequestError
from baton_core.prompt_embeds import ITEM_BYTES, MAX_EMBEDS_BYTES, PLACEHOLDER, PromptEmbeds, check_sizes
from baton_router.embeds.torch_tensor import NoTensorError, TensorBytes, read_torch_tensor

FIELD: Final = "prompt_embeds"
_ALLOWED: Final = (
    "base64 of what torch.save or safetensors writes of one contiguous tensor [tokens, hidden size] of "
    f"{', '.join(ITEM_BYTES)}"
)
_MAX_FILE_BYTES: Final = MAX_EMBEDS_BYTES + 2**16
_MAX_HEADER_BYTES: Final = 2**14
_DTYPES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedsLimits:
    """The sizes that embeddings of a prompt may have."""

    hidden_size: int | None
    """Width of the model's embeddings; None where workers alone know it."""
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """Token ids of a prompt; where one of `embeds` stands, they are placeholders."""

    token_ids: tuple[int, ...]
    embeds: tuple[PromptEmbeds, ...] = ()


ReadEmbeds: TypeAlias = Callable[[EmbedsLimits], PromptTokens]


@dataclass(frozen=True, slots=True)
class EmbedsPrompt:
    """A prompt with embeddings, which are read in a tokenizing thread, once it is known that they may be."""

    read: ReadEmbeds


def placed(embeds: PromptEmbeds) -> PromptTokens:
    """Return a prompt of nothing but embeddings."""
    return PromptTokens(token_ids=(PLACEHOLDER,) * embeds.num_tokens, embeds=(embeds,))


def read_encoded(field: str, text: object, limits: EmbedsLimits) -> PromptEmbeds:
    """Return the embeddings that a client sends as text.

    Raises:
        InvalidRequestError: they are none, have another width than the model's, or a number is not finite.
        ContextLengthError: there are more of them than the context holds.
    """
    if not isinstance(text, str) or len(text) > 4 * _MAX_FILE_BYTES // 3 + 4:
        value = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise InvalidRequestError(field, value, f"{_ALLOWED}, of at most {MAX_EMBEDS_BYTES} bytes")
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidRequestError(field, text, _ALLOWED) from None
    try:
        tensor = read_torch_tensor(content) if content.startswith(b"PK") else _read_safetensors(content)
    except NoTensorError as error:
        raise InvalidRequestError(field, str(error), _ALLOWED) from None
    check_shape(field, tensor.shape, limits)
    check_sizes(tensor.dtype, tensor.shape[-1], len(tensor.data))
    return PromptEmbeds.of(bytes(tensor.data), dtype=tensor.dtype, hidden_size=tensor.shape[-1])


def check_shape(field: str, shape: tuple[int, ...], limits: EmbedsLimits) -> None:
    """Refuse embeddings that are not `[num_tokens, hidden_size]`, perhaps with a 1 before it.

    Raises:
        InvalidRequestError: naming the shape and the one that is allowed.
        ContextLengthError: there are more tokens than the context holds.
    """
    width, most = limits.hidden_size, limits.max_model_len - 1
    is_plain = len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)
    if not is_plain or 0 in shape or (width is not None and shape[-1] != width):
        allowed = f"[1 to {most} tokens, {'hidden size' if width is None else width}]"
        raise InvalidRequestError(f"{field} shape", list(shape), allowed)
    if shape[-2] > most:
        raise ContextLengthError(field, shape[-2], most, limits.max_model_len)


def _read_safetensors(content: bytes) -> TensorBytes:
    """Return the only tensor of a file, or the one named as the field.

    Raises:
        NoTensorError: there is none, or the file is damaged.
    """
    try:
        (length,) = struct.unpack_from("<Q", content)
        start = 8 + length
        if length > _MAX_HEADER_BYTES or start > len(content):
            raise NoTensorError("a file of neither format")
        header = json.loads(content[8:start])
        header.pop("__metadata__", None)
        entry = header[FIELD] if FIELD in header or len(header) != 1 else next(iter(header.values()))
        shape, (first, end) = tuple(entry["shape"]), entry["data_offsets"]
        sizes = (*shape, first, end)
        dtype = entry["dtype"]
    except NoTensorError:
        raise
    except (struct.error, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise NoTensorError("a file of neither format, or of several tensors without that name") from None
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise NoTensorError(f"numbers of dtype {dtype!r:.20}")
    if not all(type(size) is int and 0 <= size <= len(content) for size in sizes):
        raise NoTensorError(f"a tensor of shape {list(shape)!r:.100}")
    if end - first != prod(shape) * ITEM_BYTES[_DTYPES[dtype]] or start + end > len(content):
        raise NoTensorError(f"{end - first} bytes for a tensor of shape {list(shape)!r:.100}")
    return TensorBytes(_DTYPES[dtype], shape, memoryview(content)[start + first : start + end])
