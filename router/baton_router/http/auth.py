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

    Browsers name the page's origin in every such request, other clients mostly none. Behind a proxy that
    changes `Host`, browsers that reach it over https say that the origin is the same.

    Raises:
        HttpError: 403.
    """
    origin = headers.get("origin")
    if origin is None or headers.get("sec-fetch-site") == "same-origin" or "*" in allowed_origins:
        return
    if origin not in allowed_origins and origin.partition("://")[2] != headers.get("host"):
        allowed = ", ".join(("this server's own pages", *allowed_origins))
        raise HttpError(
            403, "forbidden_origin", f"origin is {origin!r}; allowed: {allowed} (--allowed-origins)"
        )
