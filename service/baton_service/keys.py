"""API keys of a server, and the header that names one in a call."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import blake2b, sha256

AUTHORIZATION = "authorization"


class Keys:
    """The keys of `--api-key`; without any, every call is allowed."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._tenants = {_digest(key): _tenant_of(key) for key in keys}

    def tenant(self, authorization: str) -> str | None:
        """Return the tenant of a call that names a key, `Bearer KEY`; None if it names none of these.

        The time this takes depends neither on how much of a key is right nor on how long the keys are.
        """
        if not self._tenants:
            return ""
        scheme, _, given = authorization.partition(" ")
        token = _digest(given.strip())
        tenants = [name for digest, name in self._tenants.items() if hmac.compare_digest(token, digest)]
        return tenants[0] if tenants and scheme.lower() == "bearer" else None


def bearer(key: str) -> str:
    """Return the value of `authorization` that names a key."""
    return f"Bearer {key}"


def _digest(key: str) -> bytes:
    return sha256(key.encode(errors="replace")).digest()


def _tenant_of(key: str) -> str:
    """Return the tenant's name: a hash of the key."""
    return blake2b(key.encode(), digest_size=16, person=b"baton tenant").hexdigest()
