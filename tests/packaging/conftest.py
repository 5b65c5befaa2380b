"""The wheel, built once, and one environment with it and no extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.installed import Installed, build_wheel, make_environment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The result of `pip install .`."""
    installed = make_environment(tmp_path_factory.mktemp("core") / "venv")
    installed.install(str(wheel))
    return installed
