"""Building, caching and choosing the CPU kernels; every failure ends in torch and one line of the log."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from baton_kernels.cpu import build as cpu_build
from baton_kernels.cpu import selection as cpu_selection
from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.build import BuildError, build
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.variants import (
    AMX,
    AVX2,
    AVX512,
    AVX512_BF16,
    PLAIN,
    TORCH,
    VARIANTS,
    CpuKernelsError,
    CpuVariant,
    cpu_flags,
    usable_variants,
)
from baton_kernels.reference.torch_attention import TorchAttention
from baton_kernels.selection import select_kernels
from tests.unit.kernels.cpu_builds import EMPTY, EMULATED_AMX, make_compiler

pytestmark = pytest.mark.slow

COPY = """
for word; do
  case "$word" in --version) exit 0;; esac
  [ "$before" = -o ] && cp {built} "$word"
  before="$word"
done
echo build >>"$0.log"
"""
"""Writes what was built before: compiling is not what is tested."""

NOT_RUN = (EMULATED_AMX, AVX2, *(one for one in VARIANTS if not one.needs <= cpu_flags() and one is not AVX2))
"""All paths of the sources, for long vectors and for short ones, and builds that no other test makes here."""


@pytest.fixture
def fresh_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder, and a process that has not chosen yet."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    monkeypatch.delenv(cpu_selection.INSTEAD_OF_AUTO, raising=False)
    cpu_selection._load_build.cache_clear()
    yield tmp_path / "baton" / "cpu_kernels"
    cpu_selection._load_build.cache_clear()


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a compiler that has a word for each of its builds, which are libraries that load."""
    compiler = make_compiler(tmp_path, COPY.format(built=build(PLAIN)))
    monkeypatch.setenv("CXX", str(compiler))
    return Path(f"{compiler}.log")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("variant", NOT_RUN, ids=lambda variant: variant.name)
def test_every_variant_compiles_without_a_warning(
    variant: CpuVariant, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    monkeypatch.setenv("CXX", compiler)
    library = build(variant, tmp_path / "cache", extra_flags=("-O0", "-Wall", "-Wextra", "-Werror"))
    assert library.read_bytes()[:4] == b"\x7fELF"


def test_the_best_variant_of_a_cpu_is_chosen() -> None:
    zen4 = AVX512_BF16.needs | {"sse2"}
    assert usable_variants(AMX.needs)[0] is AMX
    assert usable_variants(zen4)[0] is AVX512_BF16
    assert usable_variants(AVX512.needs) == (AVX512, AVX2, PLAIN)
    assert usable_variants(frozenset()) == (PLAIN,)


def test_flags_are_those_of_cpuinfo(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpu_flags(cpuinfo) == {"fpu", "avx2", "fma"}
    assert cpu_flags(tmp_path / "missing") == frozenset()


def test_a_cpu_computes_in_cpp_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cpu_selection.INSTEAD_OF_AUTO, raising=False)
    kernels = select_kernels("cpu").attention
    assert isinstance(kernels, CpuAttention)
    assert kernels.v_axes == "HTD"
    assert select_kernels("cpu", torch.bfloat16).attention.v_axes == (
        "HDT" if AMX.needs <= cpu_flags() else "HTD"
    )
    assert type(select_kernels("cpu", torch.float16).attention) is TorchAttention


def test_each_build_that_this_cpu_runs_is_had_by_name() -> None:
    for variant in usable_variants(cpu_flags()):
        kernels = select_kernels("cpu", torch.bfloat16, variant.name)
        assert kernels.attention.v_axes == ("HDT" if variant.has_tiles else "HTD")
        library = cpu_selection.load_build(variant.name)
        assert library is not None
        assert library.variant is variant
    assert type(select_kernels("cpu", cpu_kernels="torch").attention) is TorchAttention


def test_the_environment_stands_in_for_auto_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu_selection.INSTEAD_OF_AUTO, "plain")
    for name, expected in (("auto", "plain"), ("avx2", "avx2")):
        if name == "auto" or AVX2.needs <= cpu_flags():
            library = cpu_selection.load_build(name)
            assert library is not None
            assert library.variant.name == expected
    monkeypatch.setenv(cpu_selection.INSTEAD_OF_AUTO, "torch")
    assert cpu_selection.load_build() is None
    monkeypatch.setenv(cpu_selection.INSTEAD_OF_AUTO, "sse")
    with pytest.raises(CpuKernelsError, match=r"^BATON_CPU_KERNELS is 'sse'; allowed on this CPU: auto, "):
        cpu_selection.load_build()
    monkeypatch.setenv(cpu_selection.INSTEAD_OF_AUTO, "")
    assert cpu_selection.load_build() is not None


def test_a_build_that_this_cpu_does_not_run_is_refused_naming_those_that_it_runs(
    fresh_choice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_selection, "cpu_flags", lambda: AVX2.needs)
    for name in ("amx", "avx512", "sse"):
        with pytest.raises(CpuKernelsError) as refused:
            cpu_selection.load_build(name)
        assert str(refused.value) == (
            f"cpu_kernels is {name!r}; allowed on this CPU: "
            "auto, avx2, plain, amx-emulated, avx512-bf16-emulated, avx512-emulated, torch"
        )


def test_a_build_that_is_asked_for_and_cannot_be_built_is_refused(
    fresh_choice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CpuKernelsError, match=r"'plain', which cannot be built here: no C.* compiler found"):
        cpu_selection.load_build("plain")


def test_without_a_compiler_torch_computes_and_the_log_says_so_once(
    fresh_choice: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.INFO):
        assert type(select_kernels("cpu").attention) is TorchAttention
        assert type(select_kernels("cpu").attention) is TorchAttention
    assert [record.getMessage() for record in caplog.records] == [
        "no C++ kernels on this CPU, torch is slower: no C++ compiler found; "
        "allowed: $CXX or one of c++, g++, clang++ on the path"
    ]


@pytest.mark.parametrize(
    ("multiplies", "flags", "expected"),
    [(False, PLAIN.needs, False), (False, AVX2.needs, True), (True, PLAIN.needs, True)],
)
def test_bfloat16_is_fast_with_vectors_or_products_of_it(
    multiplies: bool, flags: frozenset[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_selection, "multiplies_bfloat16", lambda: multiplies)
    monkeypatch.setattr(cpu_selection, "cpu_flags", lambda: flags)
    assert cpu_selection.is_fast_in_bfloat16() is expected


@pytest.mark.parametrize("multiplies", [False, True])
def test_bfloat16_that_torch_only_emulates_is_told(
    multiplies: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu_selection, "multiplies_bfloat16", lambda: multiplies)
    for dtype in (torch.bfloat16, torch.float32):
        cpu_selection.select_cpu_kernels(dtype, TORCH)
    told = "torch emulates bfloat16 on this CPU, prompts above all; dtype=float32 is faster"
    assert caplog.messages.count(told) == (0 if multiplies else 1)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'case "$1" in --version) exit 0;; esac; echo "fatal error: no space left on device" >&2; exit 1'
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, script)))
    with pytest.raises(BuildError, match="no space left on device"):
        build(PLAIN, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))
    assert not list((tmp_path / "cache").glob("*.unfinished"))


def test_arguments_in_cxx_are_the_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = make_compiler(tmp_path, f'echo "$1" >>"$0.log"; shift; {EMPTY}')
    monkeypatch.setenv("CXX", f"{compiler} -mtune='a b'")
    library = build(PLAIN, tmp_path / "cache")
    assert Path(f"{compiler}.log").read_text().splitlines() == ["-mtune=a b", "-mtune=a b"]
    monkeypatch.setenv("CXX", f"{compiler} -mtune=c")
    assert build(PLAIN, tmp_path / "cache") != library


@pytest.mark.parametrize(
    ("given", "said"), [("missing -v", "which is not there; allowed"), ("'c++", "No closing quotation")]
)
def test_a_compiler_that_is_given_and_not_there_is_named(
    given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", given)
    with pytest.raises(BuildError, match=rf"^CXX is {re.escape(repr(given))}.* {said}"):
        build(PLAIN, tmp_path / "cache")


@pytest.mark.parametrize("hangs_at", ["--version", "-std=*"])
def test_a_compiler_that_hangs_is_given_up(
    hangs_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'case "$1" in {hangs_at}) exec sleep 60;; esac'
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, script)))
    monkeypatch.setattr(cpu_build, "_TIMEOUT_S", 1)
    with pytest.raises(BuildError, match="took more than 1 s"):
        build(PLAIN, tmp_path / "cache")


def test_after_a_compiler_that_hangs_no_other_variant_is_tried(
    fresh_choice: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fresh_choice.parents[1]
    script = 'case "$1" in -std=*) echo build >>"$0.log"; exec sleep 60;; esac'
    monkeypatch.setenv("CXX", str(make_compiler(folder, script)))
    monkeypatch.setattr(cpu_build, "_TIMEOUT_S", 5)
    monkeypatch.setattr(cpu_selection, "cpu_flags", lambda: AVX512.needs)
    with caplog.at_level(logging.INFO):
        assert type(select_kernels("cpu").attention) is TorchAttention
    assert (folder / "compiler.log").read_text().split() == ["build"]
    (message,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert message.endswith("took more than 5 s for the CPU kernels")


def test_workers_that_start_together_build_once(builds: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as workers:
        paths = set(workers.map(lambda _: build(PLAIN, tmp_path / "cache"), range(4)))
    assert builds.read_text().split() == ["build"]
    (path,) = paths
    CpuLibrary(path, PLAIN)
    assert build(PLAIN, tmp_path / "cache", ("-O1",)) != path


def test_what_a_killed_build_has_left_is_removed(builds: Path, tmp_path: Path) -> None:
    path = build(PLAIN, tmp_path / "cache")
    path.unlink()
    left = path.with_suffix(".unfinished")
    left.mkdir()
    (left / "structs.h").touch()
    assert build(PLAIN, tmp_path / "cache") == path
    assert not left.exists()


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_build_that_is_cut_short_is_built_again(share: float, builds: Path, fresh_choice: Path) -> None:
    path = build(PLAIN)
    os.truncate(path, int(path.stat().st_size * share))
    library = cpu_selection.load_build("plain")
    assert library is not None
    assert library.name == path.stem
    assert len(builds.read_text().split()) == 2


def test_where_no_build_is_loaded_no_other_variant_is_tried(
    fresh_choice: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = make_compiler(fresh_choice.parents[1], f'{EMPTY}; echo build >>"$0.log"')
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(cpu_selection, "cpu_flags", lambda: AVX512.needs)
    assert cpu_selection.load_build() is None
    assert Path(f"{compiler}.log").read_text().split() == ["build", "build"]
    assert "cannot be loaded" in caplog.text


def test_importing_builds_nothing(builds: Path, fresh_choice: Path) -> None:
    assert not fresh_choice.exists()
    select_kernels("cpu")
    assert len(list(fresh_choice.glob("*.so"))) == 1
    assert builds.read_text().split() == ["build"]
