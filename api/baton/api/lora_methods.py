"""Methods of engines about LoRA adapters."""

from __future__ import annotations

from typing import Final

from baton.api.refused import Refused
from baton.api.request_builder import RequestBuilder
from baton.lora import LoRARequest

_PINNED: Final = "an adapter stays loaded while requests use it; max_cpu_loras keeps more of them"


class LoRAMethods:
    """Adapters that are known by their ids; they are loaded when requests ask for them."""

    requests: RequestBuilder
    pin_lora = Refused(_PINNED)

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter's folder, so that requests need not; returns True.

        Raises:
            InvalidRequestError: the folder cannot be used, or the engine takes no adapters.
        """
        return self.requests.adapters.find(lora_request) is not None

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; False where no id is that. Its running requests go on."""
        return self.requests.adapters.forget(lora_id)

    def list_loras(self) -> set[int]:
        """Return the ids of the adapters that are known."""
        return self.requests.adapters.ids


class AsyncLoRAMethods:
    """The same, as coroutines."""

    requests: RequestBuilder
    pin_lora = Refused(_PINNED)

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """As `LoRAMethods.add_lora`."""
        return self.requests.adapters.find(lora_request) is not None

    async def remove_lora(self, lora_id: int) -> bool:
        """As `LoRAMethods.remove_lora`."""
        return self.requests.adapters.forget(lora_id)

    async def list_loras(self) -> set[int]:
        """As `LoRAMethods.list_loras`."""
        return self.requests.adapters.ids
