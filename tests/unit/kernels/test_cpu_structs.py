"""Structs of the C++ kernels: defined once, and of the same layout for the compiler and for ctypes."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import pytest

from baton_kernels.cpu import build as cpu_build
from baton_kernels.cpu import library as cpu_library
from baton_kernels.cpu import selection as cpu_selection
from baton_kernels.cpu.build import BuildError, build
from baton_kernels.cpu.c_struct import Int32, Int64, Source, c_struct, header, layout
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.linear_structs import PackedLinearArgs
from baton_kernels.cpu.structs import KERNELS, STRUCTS, c_header
from baton_kernels.cpu.variants import AVX2, PLAIN, CpuVariant
from baton_kernels.interface.kernels import NOT_GATED, Function
from baton_kernels.interface.sampling import Refusal
from tests.unit.kernels.cpu_builds import BUILDS, load

pytestmark = pytest.mark.slow


@c_struct
class Inner(ctypes.Structure):
    first: Int32


@c_struct
class Outer(ctypes.Structure):
    inner: Inner
    place: Source
    count: Int64


def test_fields_are_those_of_the_annotations() -> None:
    assert Outer._fields_ == [("inner", Inner), ("place", ctypes.c_void_p), ("count", ctypes.c_int64)]
    assert Outer(inner=Inner(first=3), place=None, count=4).inner.first == 3
    assert list(layout([Outer])) == [
        ("the size of Outer", "sizeof(Outer)", 24),
        ("the offset of Outer.inner", "offsetof(Outer, inner)", 0),
        ("the size of Outer.inner", "sizeof(Outer::inner)", 4),
        ("the offset of Outer.place", "offsetof(Outer, place)", 8),
        ("the size of Outer.place", "sizeof(Outer::place)", 8),
        ("the offset of Outer.count", "offsetof(Outer, count)", 16),
        ("the size of Outer.count", "sizeof(Outer::count)", 8),
    ]


def test_the_header_declares_structs_functions_and_numbers() -> None:
    lines = header([Inner, Outer], {Refusal: "int64_t"}, {"kTwo": 2}, {Outer: "run"}).splitlines()
    assert "enum Refusal : int64_t { kNotANumber = -1, kInfinite = -2, kNothingLeft = -3 };" in lines
    assert "constexpr int kTwo = 2;" in lines
    start = lines.index("struct Outer {")
    assert lines[start : start + 5] == [
        "struct Outer {",
        "  Inner inner;",
        "  const void* place;",
        "  int64_t count;",
        "};",
    ]
    assert 'extern "C" int run(const baton::Outer* args);' in lines


def test_numbers_that_both_languages_use_are_in_the_header() -> None:
    for function in Function:
        name = "".join(word.capitalize() for word in function.name.split("_"))
        assert f"k{name} = {function.value}" in c_header()
    assert f"constexpr int kNotGated = {NOT_GATED};" in c_header()


@pytest.mark.parametrize("variant", BUILDS, ids=lambda variant: variant.name)
def test_every_build_has_the_layout_of_ctypes_and_all_kernels(variant: CpuVariant) -> None:
    library = load(variant)
    assert len(list(layout(STRUCTS))) > 150
    assert set(library._kernels) == set(KERNELS)


@pytest.mark.parametrize("change", ["moved", "narrower", "longer"])
def test_a_struct_that_differs_from_the_build_is_refused_by_name(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations = dict(PackedLinearArgs.__annotations__)
    match change:
        case "moved":
            annotations = {"function": annotations.pop("function"), **annotations}
            expected = r"the size of PackedLinearArgs is 80 bytes; expected 88"
        case "narrower":
            annotations["num_rows"] = "Int32"
            expected = r"the size of PackedLinearArgs\.num_rows is 8 bytes; expected 4"
        case "longer":
            annotations["more"] = "Int64"
            expected = r"its structs have \d+ sizes and offsets; expected \d+"
    namespace = {"__annotations__": annotations, "__module__": PackedLinearArgs.__module__}
    other = c_struct(type("PackedLinearArgs", (ctypes.Structure,), namespace))
    changed = tuple(other if struct is PackedLinearArgs else struct for struct in STRUCTS)
    monkeypatch.setattr(cpu_library, "STRUCTS", changed)
    with pytest.raises(BuildError, match=rf"plain-\w+\.so: {expected}"):
        CpuLibrary(build(PLAIN), PLAIN)


def test_a_compiler_that_lays_out_structs_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = f"#pragma pack(push, 4)\n{c_header()}\n#pragma pack(pop)\n"
    monkeypatch.setattr(cpu_build, "c_header", lambda: packed)
    path = build(PLAIN, tmp_path / "cache", ("-O0",))
    with pytest.raises(BuildError, match=r"the size of DecodeAttentionArgs is 180 bytes; expected 184"):
        CpuLibrary(path, PLAIN)


def test_torch_computes_where_structs_differ_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu_library, "STRUCTS", STRUCTS[1:])
    monkeypatch.setattr(cpu_selection, "cpu_flags", lambda: frozenset())
    monkeypatch.delenv(cpu_selection.INSTEAD_OF_AUTO, raising=False)
    cpu_selection._load_build.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert cpu_selection.load_build() is None
            assert cpu_selection.load_build() is None
    finally:
        cpu_selection._load_build.cache_clear()
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("no C++ kernels on this CPU, torch is slower: plain-")


def test_a_change_of_a_struct_makes_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compiler").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "compiler").chmod(0o755)
    compiler = (str(tmp_path / "compiler"),)
    before = cpu_build._digest(compiler, AVX2.compiler_flags)
    monkeypatch.setattr(cpu_build, "c_header", lambda: c_header() + "struct More {};\n")
    assert cpu_build._digest(compiler, AVX2.compiler_flags) != before
