"""The store of responses: what is kept, for whom, and for how long."""

from __future__ import annotations

import pytest

from baton_core.errors import InvalidConfigError
from baton_router.http.response_store import ResponseStore, StoredResponse
from baton_router.process.http_settings import ResponseStoreLimits


def response(num_bytes: int = 10, created_s: float = 0.0) -> StoredResponse:
    return StoredResponse(body=b"x" * (num_bytes - 2), items=(b"y", b"y"), created_s=created_s)


def test_the_oldest_go_first_where_bytes_or_number_or_age_are_exceeded() -> None:
    store = ResponseStore(ResponseStoreLimits(num_responses=3, num_bytes=100, age_s=10.0))
    for name in "abcd":
        store.put("t", name, response())
    assert [store.get("t", name, 0.0) is not None for name in "abcd"] == [False, True, True, True]
    store.put("t", "e", response(num_bytes=85))
    assert [store.get("t", name, 0.0) is not None for name in "cde"] == [False, True, True]
    store.update("t", "e", b"x" * 95, "completed")
    kept = store.get("t", "e", 10.0)
    assert store.get("t", "d", 10.0) is None
    assert kept is not None
    assert (kept.status, kept.num_bytes) == ("completed", 97)
    assert store.get("t", "e", 10.1) is None
    store.put("t", "f", response(num_bytes=101))
    assert store.get("t", "f", 0.0) is None, "it is larger than all may be together"


def test_tenants_have_responses_of_their_own() -> None:
    store = ResponseStore(ResponseStoreLimits(num_bytes=20))
    store.put("t", "a", response())
    store.put("u", "a", response())
    assert store.delete("u", "a") is not None
    assert store.delete("u", "a") is None
    assert store.get("u", "a", 0.0) is None
    store.put("t", "a", response())  # in the place of the other, whose bytes no longer count
    store.put("t", "b", response())
    assert store.get("t", "a", 0.0) is not None
    store.update("t", "c", b"", "completed")
    assert store.get("t", "c", 0.0) is None, "what is forgotten is not kept again"


def test_none_are_kept_where_the_number_is_0() -> None:
    store = ResponseStore(ResponseStoreLimits(num_responses=0))
    assert not store.is_enabled
    with pytest.raises(InvalidConfigError, match="--max-stored-responses is -1; allowed: 0 or more"):
        ResponseStoreLimits(num_responses=-1)
    with pytest.raises(InvalidConfigError, match="--max-stored-response-age is 0; allowed: seconds, over 0"):
        ResponseStoreLimits(age_s=0)
