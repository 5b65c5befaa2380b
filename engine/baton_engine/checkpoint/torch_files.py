"""Tensor descriptions of a weight file in torch's own format, for models that are published in no other.

No code of the file is run and none of its data is read here: torch's restricted unpickler builds tensors
without storage, which know where their bytes lie if torch wrote the file. Files are zip archives without
compression; older ones than that are refused.
"""

from __future__ import annotations

import zipfile
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
_MAGIC: Final = b"PK\x03\x04"
"""The first bytes of a zip archive, by which torch knows it."""
_LOCAL_HEADER_BYTES: Final = 30
"""Length of a record's own header before its name and extra field; their lengths are its last four bytes."""
_CONVERSION: Final = "convert it: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"


def read_torch_entries(path: Path) -> dict[str, TensorEntry]:
    """Read the table of one file into tensor name -> entry.

    Raises:
        InvalidModelError: the file is damaged, of the older format, or holds something else than tensors
            that lie row-major in it.
    """
    records = _records(path)
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
        name: _entry(path, file_bytes, records, name, tensor)
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor)
    }


def _records(path: Path) -> set[int]:
    """Return where the uncompressed records of a zip archive begin; none where it is no archive.

    Raises:
        InvalidModelError: the file is damaged, or its numbers are in another order of bytes.
    """
    begins: set[int] = set()
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return begins
            with zipfile.ZipFile(file) as archive:
                for record in archive.infolist():
                    if (
                        record.filename.endswith("/byteorder")
                        and (order := archive.read(record)) != b"little"
                    ):
                        raise InvalidModelError(f"{path} has the byte order {order!r:.20}; allowed: little")
                    file.seek(record.header_offset)
                    header = file.read(_LOCAL_HEADER_BYTES)
                    names_bytes = int.from_bytes(header[-4:-2], "little") + int.from_bytes(
                        header[-2:], "little"
                    )
                    if record.compress_type == zipfile.ZIP_STORED:
                        begins.add(record.header_offset + _LOCAL_HEADER_BYTES + names_bytes)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise InvalidModelError(f"{path} cannot be read ({error}); allowed: what torch.save writes") from None
    return begins


def _entry(path: Path, file_bytes: int, records: set[int], name: str, tensor: Tensor) -> TensorEntry:
    storage_start = tensor.untyped_storage()._checkpoint_offset
    if storage_start is None:
        raise InvalidModelError(
            f"{path} has the format of torch before 1.6; allowed: a newer one; {_CONVERSION}"
        )
    if storage_start not in records:
        raise InvalidModelError(
            f"{path}: tensor {name} does not lie where torch.save puts it; allowed: a file that no other "
            f"program has packed again; {_CONVERSION}"
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
