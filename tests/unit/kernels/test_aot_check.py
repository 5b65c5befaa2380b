import os
import subprocess
import sys
from pathlib import Path

import pytest

EXHAUSTING = """
import dataclasses, sys, torch
from baton_kernels.aot_check import check
from baton_kernels.triton_decode import split_variant

fitting = split_variant(torch.bfloat16, 128, group=7, block_size=32)
wrong = check([dataclasses.replace(fitting, constexprs={{**fitting.constexprs, **{changes}}})], [90])
sys.exit("\\n".join(wrong) or 0)
"""

COVERED = """
from triton.runtime.jit import JITFunction
from baton_kernels import triton_decode
from baton_kernels.aot_check import all_variants

defined = {name for name, value in vars(triton_decode).items() if isinstance(value, JITFunction)}
checked = {variant.kernel.__name__ for variant in all_variants()}
assert defined and defined == checked, (defined, checked)
"""


def run_python(*arguments: str, cache: Path, interpret: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("arch", ["80", "90"])
def test_the_kernels_of_a_head_size_compile_and_fit(arch: str, tmp_path: Path) -> None:
    arguments = ("--arch", arch, "--head-dim", "64")
    done = run_python("-m", "baton_kernels.aot_check", *arguments, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert all(line.startswith(f"sm_{arch} ") and " 0 B stack " in line for line in lines)
    for kernel in ("attend_splits[*bf16", "attend_splits[*fp32", "merge_splits[*fp16"):
        assert any(kernel in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "figure"),
    [({"TILE": 512}, "shared memory: "), ({"TILE": 256, "HEADS": 64}, "spills: ")],
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
