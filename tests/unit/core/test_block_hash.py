"""Content addresses: what must change a block's hash, and what must not."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.blocks.block_hash import (
    HASH_BYTES,
    block_hashes,
    child_hash,
    extend_hashes,
    group_address,
    is_in_first_group,
    root_hash,
)
from baton_core.model.model_description import ModelDescription
from baton_core.model.model_identity import PROTOCOL_VERSION
from tests.builders import make_identity, make_prompt

ROOT = root_hash(make_identity())


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(block_hashes(ROOT, make_prompt(length), 4)) for length in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_hash_is_chained_to_all_tokens_before_it() -> None:
    first, second = block_hashes(ROOT, (1, 2, 3, 4, 5, 6, 7, 8), 4)
    assert first == child_hash(ROOT, (1, 2, 3, 4))
    assert second == child_hash(first, (5, 6, 7, 8))
    assert second != block_hashes(ROOT, (9, 2, 3, 4, 5, 6, 7, 8), 4)[1]
    assert len(second) == HASH_BYTES


def test_hashes_of_a_prefix_are_a_prefix_of_the_hashes() -> None:
    assert block_hashes(ROOT, make_prompt(16), 4)[:2] == block_hashes(ROOT, make_prompt(11), 4)


def test_hashes_grow_with_the_tokens() -> None:
    hashes = block_hashes(ROOT, make_prompt(9), 4)
    extend_hashes(hashes, ROOT, make_prompt(17), 4)
    assert hashes == block_hashes(ROOT, make_prompt(17), 4)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "other"},
        {"description": ModelDescription(config=(("rope_theta", "5"),))},
        {"kv_variant": "x"},
        {"quantization": "int8"},
        {"dtype": "bfloat16"},
        {"kv_layout": "x"},
        {"block_size": 8},
        {"kv_windows": (None, 6)},
        {"protocol_version": PROTOCOL_VERSION + 1},
    ],
)
def test_the_root_covers_the_model(change: dict[str, Any]) -> None:
    assert root_hash(make_identity(**change)) != ROOT


def test_groups_give_the_same_tokens_different_addresses() -> None:
    (plain,) = block_hashes(ROOT, make_prompt(4), 4)
    assert group_address(plain, 0) == plain
    addresses = [group_address(plain, group) for group in range(3)]
    assert len(set(addresses)) == 3
    assert [is_in_first_group(address) for address in addresses] == [True, False, False]


def test_transport_and_numerics_are_left_out() -> None:
    assert root_hash(make_identity(transport="tcp", numerics="avx2")) == ROOT


def test_tenants_with_different_salts_share_nothing() -> None:
    roots = {root_hash(make_identity(), salt) for salt in ("", "a", "b")}
    assert len(roots) == 3


def test_a_salt_cannot_imitate_another_field() -> None:
    joined = root_hash(make_identity(weights="ab"), "c")
    assert joined != root_hash(make_identity(weights="a"), "bc")
