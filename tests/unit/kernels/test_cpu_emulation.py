"""Emulated instructions against their definition and, where this CPU has them, against the instructions: bit
by bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from baton_kernels.cpu import build as cpu_build
from baton_kernels.cpu.build import build
from baton_kernels.cpu.variants import AMX, AVX512_BF16, CpuVariant, cpu_flags
from tests.unit.kernels.cpu_builds import EMULATED_AMX

pytestmark = pytest.mark.slow

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
Probe = Callable[[CpuVariant], ctypes.CDLL]

PROBE = """
#include "bfloat16_pairs.h"
#if BATON_TILES
#include "amx.h"
#endif

extern "C" void add_pairs(const float* sums, const uint16_t* a, const uint16_t* b, float* out, int64_t count)
{ using namespace baton; for (int64_t i = 0; i < count; ++i, sums += 16, out += 16, a += 32, b += 32)
store(out, add_product(load(sums), load_numbers(reinterpret_cast<const Pair*>(a)),
load_numbers(reinterpret_cast<const Pair*>(b)))); }

// The fraction of each number, and `x` times two to the power of its whole part.
extern "C" void scale(const float* x, const float* power, float* fraction, float* out, int64_t count)
{ using namespace baton; for (int64_t i = 0; i < count; i += 16) {
  store(fraction + i, (Floats)_mm512_reduce_ps((__m512)load(power + i), 1));
  store(out + i, (Floats)_mm512_scalef_ps((__m512)load(x + i), (__m512)load(power + i))); } }

#if BATON_TILES
extern "C" int prepare() { return baton::request_tiles(); }

// sums [16, 16] += a [16, 32] @ b, pairs of b's rows side by side [16, 16, 2]; `count` of each.
extern "C" void multiply(float* sums, const uint16_t* a, const uint16_t* b, int64_t count) {
  const baton::TileSession session;
  for (int64_t i = 0; i < count; ++i, sums += 256, a += 512, b += 512) {
    baton::load_tile<0>(sums, 64);
    baton::load_tile<1>(a, 64);
    baton::load_tile<2>(b, 64);
    baton::multiply_tiles<0, 1, 2>();
    baton::store_tile<0>(sums, 64);
  }
}
#endif
"""
COUNT = 200


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    """Return a function that builds the probe for a variant, once, which this CPU must run."""
    folder, cache_folder = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("cache")
    for source in cpu_build.SOURCES.iterdir():
        if source.suffix == ".h":
            (folder / source.name).symlink_to(source)
    (folder / "kernels.cpp").write_text(PROBE)

    @cache
    def load(variant: CpuVariant) -> ctypes.CDLL:
        if missing := variant.needs - cpu_flags():
            pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
        library = ctypes.CDLL(str(build(variant, cache_folder)))
        if variant.has_tiles and not library.prepare():
            pytest.skip("the kernel refuses the tile registers")
        return library

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_build, "SOURCES", folder)
        yield load


def halves(*shape: int, seed: int, spread: float) -> Halves:
    """Numbers of bfloat16 whose exponents differ by up to `spread`, either way."""
    random = torch.Generator().manual_seed(seed)
    exponents = torch.rand(shape, generator=random) * 2 * spread - spread
    numbers = torch.randn(shape, generator=random) * torch.exp2(exponents)
    return numbers.bfloat16().view(torch.int16).numpy().view(np.uint16)


def widen(numbers: Halves) -> Floats:
    return (numbers.astype(np.uint32) << 16).view(np.float32)


def call(function: Callable[..., None], *arrays: Floats | Halves) -> None:
    """Call a function of the probe with arrays, each as long as the first."""
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in arrays)
    function(*pointers, ctypes.c_int64(len(arrays[0])))


def add_pairs(library: ctypes.CDLL, sums: Floats, a: Halves, b: Halves) -> Floats:
    out = np.empty_like(sums)
    call(library.add_pairs, sums, a, b, out)
    return out


def multiply(library: ctypes.CDLL, sums: Floats, a: Halves, b: Halves) -> Floats:
    out = sums.copy()
    call(library.multiply, out, a, b)
    return out


def add_exactly(sums: Floats, a: Floats, b: Floats) -> Floats:
    """Return a * b + sums rounded once: exact in float64 for numbers of like size."""
    return (a.astype(np.float64) * b.astype(np.float64) + sums.astype(np.float64)).astype(np.float32)


def same_bits(a: Floats, b: Floats) -> bool:
    return bool((a.view(np.uint32) == b.view(np.uint32)).all())


def test_the_second_number_of_a_pair_is_added_first_and_each_is_rounded_once(probe: Probe) -> None:
    a, b = halves(COUNT, 32, seed=0, spread=3), halves(COUNT, 32, seed=1, spread=3)
    sums = widen(halves(COUNT, 16, seed=2, spread=3))
    expected = add_exactly(sums, widen(a[:, 1::2].copy()), widen(b[:, 1::2].copy()))
    expected = add_exactly(expected, widen(a[:, ::2].copy()), widen(b[:, ::2].copy()))
    assert same_bits(add_pairs(probe(EMULATED_AMX), sums, a, b), expected)


def test_a_tile_sums_even_and_odd_products_apart_and_adds_both_to_the_old_sum(probe: Probe) -> None:
    a, b = halves(COUNT, 16, 32, seed=3, spread=2), halves(COUNT, 16, 32, seed=4, spread=2)
    sums = widen(halves(COUNT, 16, 16, seed=5, spread=2))
    chains = []
    for first in (0, 1):
        chain = np.zeros_like(sums)
        for k in range(16):
            x = widen(a[:, :, 2 * k + first].copy())[:, :, None]
            y = widen(b[:, k, first::2].copy())[:, None, :]
            chain = add_exactly(chain, x, y)
        chains.append(chain)
    expected = sums + (chains[0] + chains[1])
    assert same_bits(multiply(probe(EMULATED_AMX), sums, a, b), expected)


def scale(library: ctypes.CDLL, x: Floats, power: Floats) -> tuple[Floats, Floats]:
    fraction, out = np.empty_like(x), np.empty_like(x)
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (x, power, fraction, out))
    library.scale(*pointers, ctypes.c_int64(len(x)))
    return fraction, out


def test_powers_of_two_equal_their_definition_and_the_hardware(probe: Probe) -> None:
    random = np.random.default_rng(0)
    x = (1 + random.random(COUNT * 16)).astype(np.float32)
    power = (random.random(COUNT * 16) * 230 - 120).astype(np.float32)
    power[:6] = (-np.inf, -1e30, -3e38, 0, -1, np.nan)
    fraction, out = scale(probe(EMULATED_AMX), x, power)
    finite = np.isfinite(power)
    exact = power[finite].astype(np.float64) - np.floor(power[finite])
    rounded = exact.astype(np.float32)
    assert same_bits(
        fraction[finite], np.where(rounded > exact, np.nextafter(rounded, np.float32(0)), rounded)
    )
    expected = np.ldexp(x[6:], np.floor(power[6:]).astype(np.int32))
    assert same_bits(out[6:], expected)
    assert not out[:3].any()
    assert np.isnan(out[5])
    if AMX.needs <= cpu_flags():
        for own, hardware in zip((fraction, out), scale(probe(AMX), x, power), strict=True):
            np.testing.assert_array_equal(own, hardware)


def test_numbers_below_the_normal_ones_count_as_zeros_going_in_and_coming_out(probe: Probe) -> None:
    library = probe(EMULATED_AMX)
    one, small = 0x3F80, 0x0001  # 1.0, and the least number of bfloat16
    a, b = np.full((1, 32), one, np.uint16), np.full((1, 32), small, np.uint16)
    assert not add_pairs(library, np.zeros((1, 16), np.float32), a, b).any()
    denormal = np.full((1, 16), 1e-39, np.float32)
    assert not add_pairs(library, denormal, np.zeros_like(a), np.zeros_like(b)).any()
    tiny = np.full((1, 32), 0x0080, np.uint16)  # 2^-126: half of it is no normal number any more
    half = np.full((1, 32), 0x3F00, np.uint16)
    half[:, 1::2] = 0
    assert not add_pairs(library, np.zeros((1, 16), np.float32), tiny, half).any()


@pytest.mark.parametrize("spread", [2, 12, 60, 130])
def test_the_instructions_of_this_cpu_give_the_same_bits(probe: Probe, spread: float) -> None:
    a, b = halves(COUNT, 32, seed=6, spread=spread), halves(COUNT, 32, seed=7, spread=spread)
    sums = widen(halves(COUNT, 16, seed=8, spread=spread))
    native, emulated = (add_pairs(probe(variant), sums, a, b) for variant in (AVX512_BF16, EMULATED_AMX))
    finite = np.isfinite(native)
    assert same_bits(np.where(finite, native, 0), np.where(finite, emulated, 0))
    assert (np.isfinite(emulated) == finite).all()


@pytest.mark.parametrize("spread", [2, 12, 60])
def test_the_tiles_of_this_cpu_give_the_same_bits(probe: Probe, spread: float) -> None:
    a, b = halves(COUNT, 16, 32, seed=9, spread=spread), halves(COUNT, 16, 32, seed=10, spread=spread)
    sums = widen(halves(COUNT, 16, 16, seed=11, spread=spread))
    native, emulated = (multiply(probe(variant), sums, a, b) for variant in (AMX, EMULATED_AMX))
    finite = np.isfinite(native)
    assert same_bits(np.where(finite, native, 0), np.where(finite, emulated, 0))
