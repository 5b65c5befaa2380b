from __future__ import annotations

from dataclasses import replace

import pytest

from baton_core.kv_layout.kv_spec import KVGroup, KVSpec

SPEC = KVSpec(num_layers=2, num_kv_heads=2, head_dim=4, block_size=8, dtype="bfloat16")


@pytest.mark.parametrize("field", ["k_axes", "v_axes"])
@pytest.mark.parametrize("axes", ["", "HT", "HTT", "HTDX", "htd"])
def test_axes_that_are_no_order_of_all_three_are_refused(field: str, axes: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is '{axes}'; allowed: H, T and D in any order"):
        replace(SPEC, **{field: axes})


def test_the_layout_names_what_a_block_holds() -> None:
    assert SPEC.layout == "LKHTD:2x2x2x8x4:bfloat16:0,1"


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, dtype="float32"),
        replace(SPEC, block_size=4),
        replace(SPEC, num_kv_heads=4),
        replace(SPEC, groups=(KVGroup(layers=(1, 0)),)),
        replace(SPEC, groups=(KVGroup(layers=(0, 1)), KVGroup(layers=(2, 3), window=8))),
    ],
)
def test_caches_that_differ_in_content_differ_in_name(other: KVSpec) -> None:
    assert other.layout != SPEC.layout


def test_windows_are_told_beside_the_name() -> None:
    windowed = replace(SPEC, groups=(KVGroup(layers=(0, 1), window=8),))
    assert windowed.layout == SPEC.layout
    assert (windowed.paging.windows, SPEC.paging.windows) == ((8,), (None,))


def test_the_order_of_axes_is_no_part_of_the_name() -> None:
    assert replace(SPEC, k_axes="THD", v_axes="HDT").layout == SPEC.layout
