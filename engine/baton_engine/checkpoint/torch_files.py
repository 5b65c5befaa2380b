"""Tensor descriptions of a weight file in torch's own format, for models that are published in no other.

No code of the file is run and none of its data is read here: torch's restricted unpickler builds tensors
without storage, which know where their bytes lie. Files are zip archives without compression; older ones
than that are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.weight_files import TensorEntry

_DTYPE_NAMES: Final = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}
_CONVERSION: Final = "convert it: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"


def read_torch_entries(path: Path) -> dict[str, TensorEntry]:
    """Read the table of one file into tensor name -> entry.

    Raises:
        InvalidModelError: the file is damaged, of the older format, or holds something else than tensors
            that lie row-major in it.
    """
    try:
        tensors = torch.load(path, map_location="meta", weights_only=True)
    # torch does not say what a damaged table may raise, and it raises much.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InvalidModelError(
            f"{path} cannot be read ({reason:.200}); allowed: what torch.save writes"
        ) from None
    if not isinstance(tensors, dict):
        raise InvalidModelError(f"{path} holds {type(tensors).__name__}; allowed: tensors by name")
    file_bytes = path.stat().st_size
    return {
        name: _entry(path, file_bytes, name, tensor)
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor)
    }


def _entry(path: Path, file_bytes: int, name: str, tensor: Tensor) -> TensorEntry:
    storage_start = tensor.untyped_storage()._checkpoint_offset
    if storage_start is None:
        raise InvalidModelError(
            f"{path} has the format of torch before 1.6; allowed: a newer one; {_CONVERSION}"
        )
    offset = int(storage_start + tensor.storage_offset() * tensor.itemsize)
    if not tensor.is_contiguous() or offset + tensor.nbytes > file_bytes:
        raise InvalidModelError(
            f"{path}: tensor {name} does not lie row-major in it; allowed: contiguous tensors; {_CONVERSION}"
        )
    return TensorEntry(
        path=path,
        dtype=_DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)),
        shape=tuple(tensor.shape),
        offset=offset,
        num_bytes=tensor.nbytes,
    )
