"""Callers that may ask over HTTP: holders of one of the operator's keys, and no pages of other sites."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers

from baton_router.http.errors import HttpError
from baton_service.keys import HEADER, Keys


def require_key(keys: Keys, headers: Headers) -> str:
    """Let a request pass whose `Authorization` names a key; returns its tenant.

    Raises:
        HttpError: 401.
    """
    tenant = keys.tenant(headers.get(HEADER, ""))
    if tenant is None:
        raise HttpError(
            401,
            "invalid_api_key",
            "Incorrect API key provided, or none; allowed: Authorization: Bearer and one of this server",
            headers={"www-authenticate": "Bearer"},
        )
    return tenant


def require_own_site(headers: Headers, allowed_origins: Collection[str]) -> None:
    """Refuse what a browser sends for a page of another site: it may reach a router that its user alone can.

    Browsers say so themselves, to https and to localhost; other clients say nothing.

    Raises:
        HttpError: 403.
    """
    if headers.get("sec-fetch-site") != "cross-site" or "*" in allowed_origins:
        return
    origin = headers.get("origin", "")
    if origin not in allowed_origins:
        allowed = ", ".join(("this server's own pages", *allowed_origins))
        raise HttpError(
            403, "forbidden_origin", f"origin is {origin!r}; allowed: {allowed} (--allowed-origins)"
        )
