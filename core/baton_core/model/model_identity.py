"""The values that must be equal for workers to share KV blocks and continue each other's sequences."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final

from baton_core.kv_layout.paging import Paging
from baton_core.model.model_description import ModelDescription, require_equal

PROTOCOL_VERSION: Final = 4
_HINTS: Final = {
    "weights": "; the same weight files",
    "transport": "; workers with pools of ranks apart pair with each other alone, and with the same order of "
    "K and V in memory: the same --rank-pools and kind of processor",
    "kv_variant": "; the same --max-model-len: this model's rotary embeddings depend on it",
    "kv_windows": "; the same --max-model-len where one is below a window",
    "quantization": "; the same --quantization, '' is a worker without",
    "structured_outputs_backend": "; the same --structured-outputs-backend",
    "logits_processors": "; the same --logits-processors",
    "logprobs_mode": "; the same --logprobs-mode",
    "pooling": "; the same --runner, --convert and --pooler-config",
    "numerics": "; '' is a worker without --batch-invariant",
}
_REGISTERED: Final = "the workers already registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """The identity on which two workers must agree before one takes blocks or sequences of the other."""

    weights: str
    """Hash of all bytes of the weights."""
    dtype: str
    block_size: int
    kv_layout: str
    """Content of a block, by `KVSpec.layout`."""
    transport: str
    """Names of the transports that the worker speaks, joined by `+`; one in common is enough."""
    kv_windows: tuple[int | None, ...] = (None,)
    """Window of each KV group in tokens; None sees all."""
    protocol_version: int = PROTOCOL_VERSION
    numerics: str = ""
    """Everything the bits of a batch-invariant worker's results depend on; empty outside that mode."""
    description: ModelDescription = field(default_factory=ModelDescription)
    """The description of the model's folder beside the weights."""
    kv_variant: str = ""
    """A hash of how keys are rotated, if that depends on more than the folder; else empty."""
    quantization: str = ""
    """Quantization of linear layers while they are loaded; empty if there is none."""
    structured_outputs_backend: str = "auto"
    logits_processors: tuple[str, ...] = ()
    """Names of functions that requests may ask for, ascending."""
    logprobs_mode: str = ""
    pooling: str = ""
    """The tasks that the model pools, by `encode_pooling_model`; empty for one that generates."""

    @property
    def paging(self) -> Paging:
        """Paging of tokens into blocks, at every worker of this identity."""
        return Paging(block_size=self.block_size, windows=self.kv_windows)

    def require_compatible(self, other: ModelIdentity) -> None:
        """Refuse `other`, a worker that wants to join a worker of this identity.

        Raises:
            IncompatibleWorkerError: names the first field that differs, its value, and what is allowed.
        """
        if self == other:
            return  # as nearly always: a worker is compared with each of a fleet
        self.description.require_same(other.description, _REGISTERED)
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            share_one = one.name == "transport" and {*mine.split("+")} & {*theirs.split("+")}
            if not share_one:
                require_equal(one.name, theirs, mine, _REGISTERED, _HINTS.get(one.name, ""))


def with_weights(identity: ModelIdentity, weights: str) -> ModelIdentity:
    """Return the identity with other weights, or the same one where they are its own."""
    return identity if identity.weights == weights else replace(identity, weights=weights)
