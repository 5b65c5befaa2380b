"""Model folders, written once for all tests of the engine; one thread: the models are too small for two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from baton_kernels.cpu.selection import load_build
from tests.models import make_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def needs_build() -> None:
    """Skips the test where torch alone computes."""
    if load_build() is None:
        pytest.skip("it needs the C++ kernels, which this process has not")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a variant's folder, to be read only."""

    @cache
    def folder_of(variant: str) -> Path:
        return make_model(tmp_path_factory.mktemp("models") / variant, variant)

    return folder_of
