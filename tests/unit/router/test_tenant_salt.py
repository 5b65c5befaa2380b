"""Tenants share cached prefixes with those of the same salt alone."""

from __future__ import annotations

import pytest

from baton_core.blocks.block_hash import block_hashes, root_hash
from baton_core.errors import InvalidRequestError
from baton_router.requests.validation import check_name, tenant_salt
from baton_service.keys import Keys
from tests.builders import make_identity

KEYS = ("key-a", "key-b")


def tenant_of(key: str, keys: tuple[str, ...] = KEYS) -> str:
    tenant = Keys(keys).tenant(f"Bearer {key}")
    assert tenant is not None
    return tenant


def test_no_block_of_one_key_has_the_hash_of_anothers() -> None:
    prompt = list(range(64))
    salts = [tenant_salt(tenant, own) for tenant in map(tenant_of, KEYS) for own in ("", "s", "t")]
    hashes = [
        block_hash
        for salt in (*salts, "", "s", "t")
        for block_hash in block_hashes(root_hash(make_identity(), salt), prompt, 8)
    ]
    assert len(set(hashes)) == len(hashes) == 9 * 8


def test_every_router_makes_the_same_salt_of_a_key() -> None:
    others = ("key-c", "key-a")
    assert tenant_salt(tenant_of("key-a"), "s") == tenant_salt(tenant_of("key-a", others), "s")
    assert tenant_salt("t", "") == "\0ada7caa429b8e99bf607c0c491d32366"


def test_a_salt_tells_nothing_of_its_key() -> None:
    assert "key-a" not in tenant_salt(tenant_of("key-a"), "")
    assert len(tenant_of("key-a")) == 32


def test_without_keys_a_requests_own_salt_is_all() -> None:
    assert tenant_salt("", "") == ""
    assert tenant_salt("", "own") == "own"
    assert Keys(()).tenant("Bearer anything") == ""


def test_tenant_and_own_salt_do_not_run_into_each_other() -> None:
    assert tenant_salt("ab", "c") != tenant_salt("a", "bc")
    assert tenant_salt("a", "1:ab") != tenant_salt("a1:a", "b")


def test_no_client_can_name_the_salt_of_a_tenant() -> None:
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        check_name("cache_salt", tenant_salt(tenant_of("key-a"), ""), 128)
