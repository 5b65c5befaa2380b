"""The structs of the C++ kernels and their mirrors in Python: the same fields at the same places."""

from __future__ import annotations

import ctypes
import importlib
import pkgutil
import shutil
import subprocess
from pathlib import Path

import pytest

import baton_kernels
from baton_kernels.cpu_build import SOURCES
from baton_kernels.cpu_variants import PLAIN
from baton_kernels.interface import NOT_GATED, Function
from baton_kernels.sampling import Refusal

C_NAMES = {"_Call": "BatonCall", "Elementwise": "BatonFunction"}
"""Structs with another name in C++ than `Baton` and that of the mirror."""


def mirrors() -> list[type[ctypes.Structure]]:
    """Every struct that a module of the kernels declares; Triton's modules declare none."""
    names = [module.name for module in pkgutil.iter_modules(baton_kernels.__path__)]
    for name in names:
        if not name.startswith(("triton", "aot", "kernel_variant")):
            importlib.import_module(f"baton_kernels.{name}")
    found = ctypes.Structure.__subclasses__()
    return [one for one in found if one.__module__.startswith("baton_kernels.")]


def checks(mirror: type[ctypes.Structure]) -> list[str]:
    c_name = C_NAMES.get(mirror.__name__, f"Baton{mirror.__name__}")
    lines = [f'static_assert(sizeof({c_name}) == {ctypes.sizeof(mirror)}, "size of {c_name}");']
    for name, *_ in mirror._fields_:
        place = getattr(mirror, name)
        lines.append(
            f"static_assert(offsetof({c_name}, {name}) == {place.offset} && "
            f'sizeof({c_name}::{name}) == {place.size}, "{c_name}.{name}");'
        )
    return lines


def compile_checks(lines: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    source = folder / "checks.cpp"
    source.write_text("\n".join(['#include "decode.cpp"', "#include <cstddef>", *lines]))
    flags = ("-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof", *PLAIN.compiler_flags, f"-I{SOURCES}")
    return subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True, timeout=60)


def test_each_mirror_has_the_fields_of_its_struct_at_their_places(tmp_path: Path) -> None:
    found = mirrors()
    assert len(found) >= 14
    done = compile_checks([line for mirror in found for line in checks(mirror)], tmp_path)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("change", ["swapped", "narrower", "longer"])
def test_a_mirror_that_differs_is_found(change: str, tmp_path: Path) -> None:
    (packed,) = (mirror for mirror in mirrors() if mirror.__name__ == "Packed")
    fields = list(packed._fields_)
    match change:
        case "swapped":
            fields[5], fields[6] = fields[6], fields[5]
        case "narrower":
            fields[5] = (fields[5][0], ctypes.c_int32)
        case "longer":
            fields.append(("more", ctypes.c_int64))
    other = type("Packed", (ctypes.Structure,), {"_fields_": fields, "__module__": "tests"})
    done = compile_checks(checks(other), tmp_path)
    assert done.returncode
    assert "BatonPacked" in done.stderr


def test_numbers_that_both_sides_give_to_one_thing_are_the_same(tmp_path: Path) -> None:
    def c_name(name: str) -> str:
        return "k" + "".join(part.capitalize() for part in name.split("_"))

    lines = [f"static_assert(int(baton::Function::{c_name(one.name)}) == {one});" for one in Function]
    refusals = {
        "kNotANumber": Refusal.NOT_A_NUMBER,
        "kInfinite": Refusal.INFINITE,
        "kNothingLeft": Refusal.NOTHING_LEFT,
    }
    lines += [f"static_assert(baton::{name} == {int(value)});" for name, value in refusals.items()]
    lines.append(f"static_assert(baton::kNotGated == {NOT_GATED});")
    done = compile_checks(lines, tmp_path)
    assert not done.returncode, done.stderr
