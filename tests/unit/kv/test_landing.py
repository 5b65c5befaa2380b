"""Blocks land in place, or beside the pool: the way of a device's memory runs on the CPU here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from baton_core.kv_layout.kv_spec import KVSpec
from baton_kv.landing import Landing
from baton_kv.layouts import convert_blocks
from baton_kv.pool_bytes import DevicePool, HostPool, PoolBytes

SPEC = KVSpec(num_layers=2, num_kv_heads=2, head_dim=4, block_size=4, dtype="bfloat16")
OTHER = replace(SPEC, v_axes="HDT")


@pytest.mark.parametrize("source_spec", [SPEC, OTHER])
@pytest.mark.parametrize("kind", [HostPool, DevicePool])
def test_blocks_that_come_in_pieces_land_whole_and_in_the_local_layout(
    kind: type[PoolBytes], source_spec: KVSpec
) -> None:
    rows = torch.zeros((6, SPEC.block_bytes), dtype=torch.uint8)
    landing = Landing(kind(rows), SPEC, source_spec)  # type: ignore[call-arg]
    source = np.random.default_rng(1).integers(0, 256, (2, SPEC.block_bytes), np.uint8)
    for columns in (slice(0, 100), slice(100, SPEC.block_bytes)):
        for target, row in zip(landing.place([4, 1], columns), source, strict=True):
            target[:] = row[columns].data
    assert b"".join(bytes(row) for row in landing.rows([4, 1])) == source.tobytes()
    landing.land([4, 1])
    expected = source.copy()
    if source_spec is not SPEC:
        convert_blocks(source, source_spec, expected, SPEC)
    assert np.array_equal(rows[[4, 1]].numpy(), expected)
    assert not rows[[0, 2, 3, 5]].any()
