"""Functions of vLLM by which clients read the bytes of `"encoding_format": "bytes"` and `"bytes_only"`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from baton.vllm_alias.serial_utils import EMBED_DTYPES, binary2tensor


@dataclass
class MetadataItem:
    """The place and form of one result in the body, as an item of the header `metadata` says."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    """Bytes of the body from `start` on, without the one at `end`."""
    shape: Sequence[int]


def build_metadata_items(
    embed_dtype: str, endianness: str, shape: Sequence[int], n_request: int
) -> list[MetadataItem]:
    """Return the places of `n_request` results of the same shape."""
    num_bytes = EMBED_DTYPES[embed_dtype].nbytes * math.prod(shape)
    return [
        MetadataItem(index, embed_dtype, endianness, index * num_bytes, (index + 1) * num_bytes, shape)
        for index in range(n_request)
    ]


def decode_pooling_output(items: Sequence[MetadataItem], body: bytes) -> list[Tensor]:
    """Return the results in the order of their indexes."""
    results = {
        one.index: binary2tensor(body[one.start : one.end], one.shape, one.embed_dtype, one.endianness)
        for one in items
    }
    return [results[index] for index in sorted(results)]
