"""What keeps the cached prefixes of different keys apart: a salt in every hash of a request's blocks."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_MARK: Final = "\0"
"""What no client's own salt may hold, so none equals the salt of a tenant."""


def tenant_salt(tenant: str, cache_salt: str) -> str:
    """Return the salt of a request of `tenant` that brings `cache_salt`; without a tenant its own is all.

    It is made of these two alone, so every router makes the same.
    """
    if not tenant:
        return cache_salt
    framed = f"{len(tenant)}:{tenant}{cache_salt}".encode()
    return _MARK + blake2b(framed, digest_size=16, person=b"baton cache salt").hexdigest()
