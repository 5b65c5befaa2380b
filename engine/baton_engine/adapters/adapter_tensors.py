"""The tensors of an adapter in PEFT's format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError, InvalidRequestError
from baton_engine.checkpoint.torch_files import read_torch_entries
from baton_engine.checkpoint.weight_files import is_safetensors, read_entries
from baton_sandbox.adapter_folder import AdapterFolder, read_adapter_folder

_PREFIX: Final = "base_model.model."
_NAME: Final = re.compile(r"(.+)\.(lora_A\.weight|lora_B\.weight|lora_embedding_A|lora_embedding_B)")
_DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_SKIPPED: Final = ".base_layer.weight"
"""Copies of the base model's tensors, which PEFT stores with the embedding and the head."""


class AdapterTensors:
    """The matrices of each module that an adapter changes.

    Raises:
        InvalidRequestError: a tensor is none of a LoRA adapter, or one of a pair is missing.
    """

    def __init__(self, folder: AdapterFolder, tensors: dict[str, Tensor]) -> None:
        self._folder = folder
        self._kinds: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if (found := _NAME.fullmatch(name.removeprefix(_PREFIX))) is None:
                allowed = "pairs of lora_A and lora_B, or of lora_embedding_A and lora_embedding_B"
                raise InvalidRequestError("adapter_model: tensor", name, allowed)
            self._kinds.setdefault(found[1], {})[found[2].removesuffix(".weight")] = tensor
        for module, kinds in self._kinds.items():
            if set(kinds) not in ({"lora_A", "lora_B"}, {"lora_embedding_A", "lora_embedding_B"}):
                raise InvalidRequestError(
                    f"adapter_model: {module}", sorted(kinds), "both of a pair of matrices"
                )

    @property
    def modules(self) -> list[str]:
        """Names of the modules, without PEFT's prefix."""
        return list(self._kinds)

    def matrices(self, module: str, in_size: int, out_size: int) -> tuple[Tensor, Tensor]:
        """Return `[rank, in_size]` and the scaled `[out_size, rank]` of a linear layer, float32.

        Raises:
            InvalidRequestError: they have other shapes.
        """
        return self._pair(module, ("lora_A", "lora_B"), in_size, out_size)

    def embedding(self, module: str, vocab_size: int, size: int) -> tuple[Tensor, Tensor]:
        """Return `[rank, vocab_size]` and the scaled `[size, rank]` of the embedding, float32.

        Raises:
            InvalidRequestError: they have other shapes.
        """
        return self._pair(module, ("lora_embedding_A", "lora_embedding_B"), vocab_size, size)

    def _pair(self, module: str, kinds: tuple[str, str], width: int, height: int) -> tuple[Tensor, Tensor]:
        rank = self._folder.rank_of(module)
        found = self._kinds[module]
        for kind, shape in zip(kinds, ((rank, width), (height, rank)), strict=True):
            if kind not in found:
                raise InvalidRequestError(f"adapter_model: {module}", sorted(found), " and ".join(kinds))
            if (given := tuple(found[kind].shape)) != shape:
                raise InvalidRequestError(
                    f"adapter_model: {module}.{kind} shape", given, f"{shape}, as the model has"
                )
        down, up = (found[kind].float() for kind in kinds)
        return down, up * self._folder.scale_of(module)


def read_adapter(path: str | Path, digest: str, max_rank: int) -> AdapterTensors:
    """Read an adapter's folder.

    Raises:
        InvalidRequestError: it cannot be read, asks for what there is not, or has another digest.
    """
    folder = read_adapter_folder(path, max_rank)
    if folder.digest != digest:
        raise InvalidRequestError(
            "lora_path", str(path), f"a folder with the digest {digest}; it has changed"
        )
    try:
        return AdapterTensors(folder, _read_tensors(folder.weights))
    except (OSError, InvalidModelError) as error:
        raise InvalidRequestError("lora_path", str(path), f"a folder with tensors ({error})") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    entries = read_entries(path) if is_safetensors(path) else read_torch_entries(path)
    tensors = {}
    with path.open("rb") as file:
        for name, entry in entries.items():
            if entry.dtype not in _DTYPES:
                raise InvalidRequestError(f"adapter_model: {name} dtype", entry.dtype, ", ".join(_DTYPES))
            if name.endswith(_SKIPPED):
                continue
            file.seek(entry.offset)
            data = bytearray(file.read(entry.num_bytes))
            tensors[name] = torch.frombuffer(data, dtype=_DTYPES[entry.dtype]).view(entry.shape)
    return tensors
