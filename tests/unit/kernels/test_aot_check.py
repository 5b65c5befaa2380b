import os
import subprocess
import sys
from pathlib import Path

import pytest

EXHAUSTING = """
import dataclasses, sys, torch
from baton_kernels.aot_check import check
from baton_kernels.triton_decode import split_variant

fitting = split_variant(torch.bfloat16, torch.bfloat16, 128, group=7, block_size=32, is_capped=False)
wrong = check([dataclasses.replace(fitting, **{changes})], [90])
sys.exit("\\n".join(wrong) or 0)
"""

COVERED = """
import importlib, pkgutil
from triton.runtime.jit import JITFunction
import baton_kernels
from baton_kernels.aot_check import all_variants

modules = [found.name for found in pkgutil.iter_modules(baton_kernels.__path__, "baton_kernels.")]
defined = {
    name
    for module in modules if ".triton_" in module
    for name, value in vars(importlib.import_module(module)).items()
    if isinstance(value, JITFunction) and value.__module__ == module and not name.startswith("_")
}
checked = {variant.kernel.__name__ for variant in all_variants()}
assert defined >= {"attend_splits", "merge_splits", "attend_chunks"}, defined
assert defined == checked, (defined, checked)
"""


def run_python(*arguments: str, cache: Path, interpret: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


def test_kernels_compile_and_fit_on_every_architecture_that_has_what_they_need(tmp_path: Path) -> None:
    matches = ("attend_splits", "*bf16", "HEAD_DIM=128")
    done = run_python(
        "-m", "baton_kernels.aot_check", "--arch", "80", "90", "100", "--match", *matches, cache=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(" 0 B stack " in line for line in lines)
    archs = {
        kind: [line.split()[0] for line in lines if f"[{kind} *fp32, " in line]
        for kind in ("*bf16", "*bf16 *fp8e4nv")
    }
    assert archs == {"*bf16": ["sm_80", "sm_90", "sm_100"], "*bf16 *fp8e4nv": ["sm_90", "sm_100"]}


@pytest.mark.parametrize(
    ("changes", "figure"),
    [({"num_stages": 20}, "shared memory: "), ({"num_warps": 1}, "spills: ")],
    ids=["shared memory", "registers"],
)
def test_a_kernel_that_takes_too_much_is_refused_by_name(
    changes: dict[str, int], figure: str, tmp_path: Path
) -> None:
    done = run_python("-c", EXHAUSTING.format(changes=changes), cache=tmp_path)
    assert done.returncode == 1
    assert "sm_90 attend_splits[*bf16" in done.stderr
    assert figure in done.stderr


def test_every_kernel_is_checked(tmp_path: Path) -> None:
    done = run_python("-c", COVERED, cache=tmp_path)
    assert done.returncode == 0, done.stderr


def test_interpreted_kernels_are_not_mistaken_for_compiled_ones(tmp_path: Path) -> None:
    done = run_python("-m", "baton_kernels.aot_check", cache=tmp_path, interpret="1")
    assert done.returncode == 2
    assert "TRITON_INTERPRET is set" in done.stderr
