"""`import baton` gives every name, and loads none before it is used."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import baton

ROOT = Path(__file__).parents[3]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
PACKAGES = SETTINGS["importlinter"]["root_packages"]


@pytest.mark.parametrize("name", baton.__all__)
def test_every_public_name_is_there(name: str) -> None:
    named = getattr(baton, name)
    assert getattr(named, "__name__", name) == name


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match="module 'baton' has no attribute 'PoolingParms'"):
        baton.PoolingParms  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    assert baton.__version__ == version("baton")
    assert ".".join(map(str, baton.__version_tuple__)) == baton.__version__
    assert baton.__version_tuple__[0] == int(baton.__version__.split(".")[0])


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed_and_says_so_in_a_wheel(package: str) -> None:
    assert list(ROOT.glob(f"*/{package}/py.typed"))
    assert "py.typed" in SETTINGS["setuptools"]["package-data"]["*"]


def test_parameters_and_arguments_need_no_torch() -> None:
    program = (
        "import sys; from baton import AsyncEngineArgs, EngineArgs, RequestOutput, SamplingParams; "
        "EngineArgs(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
