"""Engines' methods of adapters: what workers are told to keep loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.api.lora_methods import AsyncLoRAMethods
from baton.lora import KnownAdapters, LoRARequest
from baton_sandbox.adapter_folder import AdapterFolder


class Engine(AsyncLoRAMethods):
    """An engine that knows some adapters, and whose workers answer a while later."""

    def __init__(self, *numbers: int) -> None:
        adapters = KnownAdapters(8)
        for number in numbers:
            adapters.find(LoRARequest(f"adapter-{number}", number, "/adapter"))
        self.requests: Any = SimpleNamespace(adapters=adapters)
        self._executor: Any = self
        self._pinning = asyncio.Lock()
        self.told: list[frozenset[int]] = []

    async def control(self, command: Any) -> list[Any]:
        await asyncio.sleep(0)
        self.told.append(command.numbers)
        return []


@pytest.fixture(autouse=True)
def _any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = AdapterFolder(path=Path("/adapter"), rank=8, alpha=8.0, digest="d")
    monkeypatch.setattr("baton.lora.read_adapter_folder", lambda *_: folder)


async def test_pins_of_callers_beside_each_other_add_up() -> None:
    engine = Engine(1, 2, 3)
    await asyncio.gather(*map(engine.pin_lora, (1, 2, 3)))
    assert engine.told[-1] == {1, 2, 3}
    await asyncio.gather(engine.remove_lora(1), engine.remove_lora(2))
    assert engine.told[-1] == {3}


async def test_workers_are_not_asked_when_an_adapter_goes_that_was_not_pinned() -> None:
    engine = Engine(1, 2)
    await engine.pin_lora(1)
    assert await engine.remove_lora(2)
    assert engine.told == [{1}]
