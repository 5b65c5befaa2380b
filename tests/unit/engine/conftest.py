"""Model folders, written once for all tests of the engine; one thread: the models are too small for two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.models import make_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a variant's folder, to be read only."""

    @cache
    def folder_of(variant: str) -> Path:
        return make_model(tmp_path_factory.mktemp("models") / variant, variant)

    return folder_of
