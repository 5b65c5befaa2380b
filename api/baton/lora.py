"""LoRA adapters as callers in Python name them."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.errors import InvalidRequestError
from baton_core.requests.adapter import Adapter
from baton_sandbox.adapter_folder import read_adapter_folder


@dataclass(slots=True)
class LoRARequest:
    """An adapter by name: its id, of at least 1, and its folder in PEFT's format.

    Raises:
        InvalidRequestError: the name or the folder is empty, or the id is out of range.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    """Read the folder again, where the name was used before."""

    def __post_init__(self) -> None:
        if not (isinstance(self.lora_int_id, int) and 1 <= self.lora_int_id < 2**63):
            raise InvalidRequestError("lora_int_id", self.lora_int_id, "a number of at least 1")
        for name in ("lora_name", "lora_path"):
            if not (isinstance(value := getattr(self, name), str) and value):
                raise InvalidRequestError(name, value, "text that is not empty")

    def __eq__(self, other: object) -> bool:
        """True if the other one has the same name."""
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path


class KnownAdapters:
    """The adapters that a caller has named, each read once.

    Args:
        max_rank: the highest rank; None where the engine takes no adapters.
    """

    def __init__(self, max_rank: int | None) -> None:
        self._max_rank = max_rank
        self._read: dict[LoRARequest, tuple[str, Adapter]] = {}
        """By name: the folder as it was given, and the adapter."""
        self._pinned: set[int] = set()

    @property
    def ids(self) -> set[int]:
        """The ids of the adapters."""
        return {request.lora_int_id for request in self._read}

    @property
    def pinned(self) -> frozenset[int]:
        """Ids of the adapters that are pinned."""
        return frozenset(self._pinned)

    def with_pinned(self, lora_int_id: int) -> frozenset[int]:
        """Return the ids of the adapters that are pinned, with one more.

        Raises:
            InvalidRequestError: no adapter has this id.
        """
        if lora_int_id not in self.ids:
            allowed = ", ".join(map(str, sorted(self.ids))) or "none, as no adapter was added"
            raise InvalidRequestError("lora_id", lora_int_id, allowed)
        return self.pinned | {lora_int_id}

    def pin(self, lora_int_id: int) -> None:
        """Note that the adapters of an id are pinned."""
        self._pinned.add(lora_int_id)

    def forget(self, lora_int_id: int) -> bool:
        """Forget the adapters of an id, pinned or not; False where there are none."""
        self._pinned.discard(lora_int_id)
        found = [request for request in self._read if request.lora_int_id == lora_int_id]
        for request in found:
            del self._read[request]
        return bool(found)

    def find(self, request: LoRARequest | None) -> Adapter | None:
        """Return the adapter of a request; its folder is read when its name comes first, or with another id.

        Raises:
            InvalidRequestError: it is no `LoRARequest`, the engine takes none, or the folder cannot be used.
        """
        if request is None:
            return None
        if self._max_rank is None:
            raise InvalidRequestError("lora_request", request, "None: enable_lora is False")
        if not isinstance(request, LoRARequest):
            raise InvalidRequestError("lora_request", request, "a LoRARequest, or None")
        known = self._read.get(request)
        asked = (request.lora_path, request.lora_int_id)
        if known is not None and asked == (known[0], known[1].number) and not request.load_inplace:
            return known[1]
        folder = read_adapter_folder(request.lora_path, self._max_rank)
        adapter = Adapter(
            name=request.lora_name,
            digest=folder.digest,
            path=str(folder.path.absolute()),
            number=request.lora_int_id,
        )
        self._read.pop(request, None)
        self._read[request] = (request.lora_path, adapter)
        return adapter
