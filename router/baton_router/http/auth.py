"""Who may ask over HTTP: holders of one of the operator's keys."""

from __future__ import annotations

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
