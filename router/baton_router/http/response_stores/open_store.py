"""Chooses the store of responses."""

from __future__ import annotations

from baton_router.http.response_stores.local_responses import LocalResponses
from baton_router.http.response_stores.response_store import ResponseStore
from baton_router.process.http_settings import ResponseStoreLimits
from baton_service.redis.redis_settings import RedisSettings


def open_response_store(limits: ResponseStoreLimits, settings: RedisSettings) -> ResponseStore:
    """Return a store in Redis, where there is one, else in memory. Make it on the loop that uses it.

    Raises:
        InvalidConfigError: the URL cannot be used.
    """
    if settings.is_given and limits.num_responses:
        from baton_router.http.response_stores.redis_responses import RedisResponses

        return RedisResponses(settings, limits)
    return LocalResponses(limits)
