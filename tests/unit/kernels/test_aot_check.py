"""Ahead-of-time compilation: its refusals, and a check that no kernel is left out."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

import baton_kernels
from baton_kernels.triton.aot_check import all_variants, check, main
from baton_kernels.triton.decode import split_variant
from baton_kernels.triton.kernel_configs import DEFAULT_ARCH, kernel_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({"num_stages": 20}, "shared memory: "),
        ({"num_warps": 1}, "spills: "),
        ({"instruction": "block_scale"}, "matrix instruction: "),
    ],
    ids=["shared memory", "registers", "instruction"],
)
def test_a_kernel_that_takes_too_much_is_refused_by_name(
    changes: dict[str, Any], figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    brain = torch.bfloat16
    config = kernel_config("attention_splits", brain, 128, DEFAULT_ARCH)
    fitting = split_variant(brain, brain, 128, 7, 32, is_capped=False, num_seqs=32, config=config)
    (wrong,) = check([replace(fitting, **changes)], [90])
    assert wrong.startswith("sm_90 attention_splits[*bf16")
    assert figure in wrong


def test_every_kernel_is_checked() -> None:
    modules = [found.name for found in pkgutil.walk_packages(baton_kernels.__path__, "baton_kernels.")]
    defined = {
        name
        for module in modules
        if ".triton." in module
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, JITFunction) and value.__module__ == module and not name.startswith("_")
    }
    assert defined >= {"attention_splits", "merge_splits", "attention_chunks"}
    assert defined == {variant.kernel.__name__ for variant in all_variants()}


def test_interpreted_kernels_are_not_mistaken_for_compiled_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err
