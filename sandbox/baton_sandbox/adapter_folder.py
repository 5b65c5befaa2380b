"""Reads what an adapter folder in PEFT's format says, without torch: its configuration and its identity."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidRequestError

CONFIG: Final = "adapter_config.json"
SAFETENSORS: Final = "adapter_model.safetensors"
TORCH: Final = "adapter_model.bin"
_MAX_CONFIG_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 4 << 20
_PLAIN_INITS: Final = (True, False, "gaussian", "eva", "orthogonal")
"""Ways to begin a training that leave the base model's weights as they are."""
_UNSET: Final = (
    *("use_dora", "lora_bias", "modules_to_save", "alora_invocation_tokens", "layer_replication"),
    *("use_bdlora", "use_qalora", "trainable_token_indices", "target_parameters"),
)
"""Fields that ask for something else than a product of two matrices for each layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFolder:
    """An adapter's configuration, and the hash of its content."""

    path: Path
    rank: int
    alpha: float
    is_rank_stabilized: bool = False
    """True if the scale is alpha over the root of the rank."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Ranks of modules whose names match these expressions."""
    alphas: Mapping[str, float] = field(default_factory=dict)
    base: str = ""
    """The model that it was trained on, as its files call it."""
    digest: str

    @property
    def max_rank(self) -> int:
        """The largest rank that a module may have."""
        return max((self.rank, *self.ranks.values()))

    def rank_of(self, module: str) -> int:
        """Return the rank of a module, given its name."""
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """Return the factor of a module's delta."""
        rank, alpha = self.rank_of(module), _matching(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)

    @property
    def weights(self) -> Path:
        """The file with the tensors."""
        return next(self.path / name for name in (SAFETENSORS, TORCH) if (self.path / name).is_file())


def _matching(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first expression that matches the end of a name, from one of its dots on."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def read_adapter_folder(path: str | Path, max_rank: int | None = None) -> AdapterFolder:
    """Read and check an adapter's configuration, and hash its tensors. Reads the whole folder.

    Raises:
        InvalidRequestError: a file is missing or damaged, the configuration asks for what there is not, or a
            rank is above `max_rank`.
    """
    folder = Path(path)
    fields = _read_config(folder)
    _refuse_unsupported(fields)
    rank, alpha = _positive(fields, "r", int), _positive(fields, "lora_alpha", float)
    ranks = _patterns(fields, "rank_pattern", int)
    weights = next((folder / name for name in (SAFETENSORS, TORCH) if (folder / name).is_file()), None)
    if weights is None:
        raise InvalidRequestError("lora_path", str(path), f"a folder with {SAFETENSORS} or {TORCH}")
    scaling = {
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": bool(fields.get("use_rslora")),
        "rank_pattern": list(ranks.items()),
        "alpha_pattern": list((alphas := _patterns(fields, "alpha_pattern", float)).items()),
    }
    digest = hashlib.sha256(json.dumps(scaling, sort_keys=True).encode())
    try:
        _hash_tensors(weights, digest)
    except OSError as error:
        raise InvalidRequestError("lora_path", str(path), f"a folder that can be read ({error})") from error
    read = AdapterFolder(
        path=folder,
        rank=rank,
        alpha=alpha,
        is_rank_stabilized=scaling["use_rslora"],
        ranks=ranks,
        alphas=alphas,
        base=str(fields.get("base_model_name_or_path") or ""),
        digest=digest.hexdigest(),
    )
    if max_rank is not None and read.max_rank > max_rank:
        raise InvalidRequestError(f"{CONFIG}: r", read.max_rank, f"1 to {max_rank}, the max_lora_rank")
    return read


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise InvalidRequestError("lora_path", str(folder), f"a folder whose {CONFIG} has at most 1 MiB")
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(
            "lora_path", str(folder), f"a folder with {CONFIG}, as PEFT writes it ({error})"
        ) from None
    if not isinstance(fields, dict):
        raise InvalidRequestError(CONFIG, fields, "an object")
    return fields


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    if (kind := fields.get("peft_type")) != "LORA":
        raise InvalidRequestError(f"{CONFIG}: peft_type", kind, "'LORA'")
    for name in _UNSET:
        if value := fields.get(name):
            raise InvalidRequestError(f"{CONFIG}: {name}", value, "nothing; such adapters are not supported")
    if (bias := fields.get("bias", "none")) != "none":
        raise InvalidRequestError(f"{CONFIG}: bias", bias, "'none'; adapters with biases are not supported")
    if (begin := fields.get("init_lora_weights", True)) not in _PLAIN_INITS:
        allowed = f"{', '.join(map(repr, _PLAIN_INITS))}: others change the base model"
        raise InvalidRequestError(f"{CONFIG}: init_lora_weights", begin, allowed)


def _positive(fields: Mapping[str, Any], name: str, kind: type[int] | type[float]) -> Any:
    return _checked(f"{CONFIG}: {name}", fields.get(name), kind)


def _checked(name: str, value: object, kind: type[int] | type[float]) -> Any:
    kinds = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1e6:
        raise InvalidRequestError(
            name, value, "a positive number" + (" without fraction" if kind is int else "")
        )
    return kind(value)


def _patterns(fields: Mapping[str, Any], name: str, kind: type[int] | type[float]) -> dict[str, Any]:
    patterns = fields.get(name) or {}
    if not isinstance(patterns, dict):
        raise InvalidRequestError(f"{CONFIG}: {name}", patterns, "an object")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidRequestError(f"{CONFIG}: {name}", pattern, f"expressions ({error})") from None
    return {key: _checked(f"{CONFIG}: {name}[{key!r}]", value, kind) for key, value in patterns.items()}


def _hash_tensors(path: Path, digest: Any) -> None:
    """Hash tensors in the order of their names, or a file of torch's as it is."""
    with path.open("rb") as file:
        if path.name == TORCH:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
            return
        size = int.from_bytes(file.read(8), "little")
        if not 2 <= size <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
            raise InvalidRequestError(SAFETENSORS, f"a header of {size} bytes", "a file of safetensors")
        try:
            header = json.loads(file.read(size))
            entries = sorted(
                (
                    name,
                    str(one["dtype"]),
                    list(one["shape"]),
                    int(one["data_offsets"][0]),
                    int(one["data_offsets"][1]),
                )
                for name, one in header.items()
                if name != "__metadata__"
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise InvalidRequestError(
                SAFETENSORS, "a damaged header", f"a file of safetensors ({error})"
            ) from None
        for name, dtype, shape, start, end in entries:
            digest.update(json.dumps([name, dtype, shape]).encode())
            file.seek(8 + size + start)
            left = end - start
            while left > 0:
                if not (piece := file.read(min(left, _PIECE_BYTES))):
                    raise InvalidRequestError(
                        SAFETENSORS, "a truncated file", "all bytes that its header names"
                    )
                digest.update(piece)
                left -= len(piece)
