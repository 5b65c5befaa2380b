"""Conversion between layouts of one cache: any to any and back is the identity."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from baton_core.kv_layout.kv_spec import ITEM_BYTES, KVSpec
from baton_kv.layouts import Blocks, convert_blocks

AXES = ["".join(order) for order in permutations("HTD")]
sizes = st.integers(1, 3)
axes = st.sampled_from(AXES)


@st.composite
def caches(draw: st.DrawFn) -> tuple[KVSpec, Blocks]:
    """A spec in any layout, and some blocks of it."""
    spec = KVSpec(
        num_layers=draw(sizes),
        num_kv_heads=draw(sizes),
        head_dim=draw(sizes),
        block_size=draw(sizes),
        dtype=draw(st.sampled_from(sorted(ITEM_BYTES))),
        k_axes=draw(axes),
        v_axes=draw(axes),
    )
    num_blocks = draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return spec, rng.integers(0, 256, (num_blocks, spec.block_bytes), np.uint8)


def laid_out(spec: KVSpec, k_axes: str, v_axes: str) -> KVSpec:
    return replace(spec, k_axes=k_axes, v_axes=v_axes)


def convert(source: Blocks, source_spec: KVSpec, target_spec: KVSpec) -> Blocks:
    target = np.zeros_like(source)
    convert_blocks(source, source_spec, target, target_spec)
    return target


def offset(spec: KVSpec, layer: int, half: int, place: dict[str, int]) -> int:
    """First byte of one element of a block, by the definition of the layout."""
    extent = {"H": spec.num_kv_heads, "T": spec.block_size, "D": spec.head_dim}
    index = layer * 2 + half
    for axis in (spec.k_axes, spec.v_axes)[half]:
        index = index * extent[axis] + place[axis]
    return index * ITEM_BYTES[spec.dtype]


def convert_slowly(source: Blocks, source_spec: KVSpec, target_spec: KVSpec) -> Blocks:
    """Element by element."""
    target = np.zeros_like(source)
    spec, item = source_spec, ITEM_BYTES[source_spec.dtype]
    ranges = (spec.num_layers, 2, spec.num_kv_heads, spec.block_size, spec.head_dim)
    for layer, half, head, token, dim in product(*map(range, ranges)):
        place = {"H": head, "T": token, "D": dim}
        there, here = (offset(each, layer, half, place) for each in (target_spec, source_spec))
        target[:, there : there + item] = source[:, here : here + item]
    return target


@given(cache=caches(), k_axes=axes, v_axes=axes)
def test_any_layout_to_any_layout_and_back_is_the_identity(
    cache: tuple[KVSpec, Blocks], k_axes: str, v_axes: str
) -> None:
    spec, blocks = cache
    other = laid_out(spec, k_axes, v_axes)
    assert np.array_equal(convert(convert(blocks, spec, other), other, spec), blocks)


@given(cache=caches(), k_axes=axes, v_axes=axes)
def test_directly_or_over_the_canonical_layout_is_the_same(
    cache: tuple[KVSpec, Blocks], k_axes: str, v_axes: str
) -> None:
    spec, blocks = cache
    other, canonical = laid_out(spec, k_axes, v_axes), laid_out(spec, "HTD", "HTD")
    by_way = convert(convert(blocks, spec, canonical), canonical, other)
    assert np.array_equal(by_way, convert(blocks, spec, other))


@given(cache=caches(), k_axes=axes, v_axes=axes)
def test_every_element_lands_where_its_layout_says(
    cache: tuple[KVSpec, Blocks], k_axes: str, v_axes: str
) -> None:
    spec, blocks = cache
    other = laid_out(spec, k_axes, v_axes)
    assert np.array_equal(convert(blocks, spec, other), convert_slowly(blocks, spec, other))


@given(cache=caches(), k_axes=axes, v_axes=axes)
def test_the_name_of_a_cache_is_the_same_in_every_layout(
    cache: tuple[KVSpec, Blocks], k_axes: str, v_axes: str
) -> None:
    spec, _ = cache
    assert laid_out(spec, k_axes, v_axes).layout == spec.layout
