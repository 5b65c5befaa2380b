"""`import baton` gives every name, and loads none before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import baton


@pytest.mark.parametrize("name", baton.__all__)
def test_every_public_name_is_there(name: str) -> None:
    named = getattr(baton, name)
    assert getattr(named, "__name__", name) == name


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match="module 'baton' has no attribute 'PoolingParams'"):
        baton.PoolingParams  # noqa: B018


def test_parameters_and_arguments_need_no_torch() -> None:
    program = (
        "import sys; from baton import AsyncEngineArgs, EngineArgs, RequestOutput, SamplingParams; "
        "EngineArgs(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
