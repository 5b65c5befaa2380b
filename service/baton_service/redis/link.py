"""A process's connection to Redis: every command has a deadline, every task continues when Redis comes back.

Only requests for stored responses wait for it. Tasks run on the process's loop, and catch up when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

import msgspec
from redis.asyncio import Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from baton_service.redis.key_names import Keys
from baton_service.redis.redis_settings import RedisSettings, refused_url
from baton_service.redis.scripts import DROP_OTHER_KINDS
from baton_service.redis.shared_state import SharedState

LEASE_S: Final = 3.0
"""Lifetime of a registration in Redis without renewal."""
RENEW_S: Final = LEASE_S / 3
COMMAND_WITHIN_S: Final = 1.0
_MIN_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 0.4
_OURS: Final[dict[str, Any]] = {"protocol": 2, "decode_responses": False}
"""Options that a URL must not set: replies are read in this form."""
FAULTS: Final = (RedisError, OSError, msgspec.MsgspecError)
"""Redis is away, refuses, or holds what this version cannot read."""
_NOTE_EVERY_S: Final = 60.0
"""Shortest time between two messages about what cannot be read."""
_log = logging.getLogger(__name__)

Argument = str | bytes | int
Script = Callable[[Sequence[str], Sequence[Argument]], Awaitable[Any]]


class RedisLink:
    """Owns the client. Make it on the loop that uses it.

    Args:
        within_s: deadline of a connection and of a command.

    Raises:
        InvalidConfigError: the URL has a parameter that redis-py does not know.
    """

    def __init__(self, settings: RedisSettings, within_s: float = COMMAND_WITHIN_S) -> None:
        self.keys = Keys(settings.namespace)
        self._shown_url = settings.shown_url
        self.state = SharedState()
        self._loop = asyncio.get_running_loop()
        self._failing: set[str] = set()
        self._client = _client(settings.url, within_s)
        self._drop_other_kinds = self._client.register_script(DROP_OTHER_KINDS)
        self._next_note_s = 0.0
        self._up_since_s = 0.0

    def script(self, source: str) -> Script:
        """Return a function that runs a script, and sends its source where Redis lacks it.

        Keys of another type than they must have are deleted first.
        """
        registered = self._client.register_script(source)

        async def run(keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
            return await self._repaired(keys, lambda: registered(keys=keys, args=arguments))

        return run

    async def command(self, *words: Argument) -> Any:
        """Run one command; a key of another type than it must have is deleted first."""
        keys = [word for word in words if isinstance(word, str)]
        return await self._repaired(keys, lambda: self._client.execute_command(*words))  # type: ignore[no-untyped-call]

    @property
    def up_for_s(self) -> float:
        """Time since which everything has succeeded; 0 while Redis is away."""
        return self._loop.time() - self._up_since_s if self.state.is_up else 0.0

    def note_unreadable(self, what: str) -> None:
        """Log that Redis holds what cannot be read, which is then left out; only now and then."""
        if self._loop.time() >= self._next_note_s:
            self._next_note_s = self._loop.time() + _NOTE_EVERY_S
            _log.warning("Redis at %s holds what cannot be read: %s", self._shown_url, what)

    async def keep_doing(self, name: str, step: Callable[[], Awaitable[None]]) -> NoReturn:
        """Repeat `step`, which waits for its work itself; after a failure with a short delay.

        `name` is the name of the work in the log.
        """
        task = asyncio.current_task()
        assert task is not None, "steps run in a task"
        backoff_s = _MIN_BACKOFF_S
        while not task.cancelling():  # `wait_for` of Python 3.11, which redis-py uses, may swallow that
            try:
                await step()
            except Exception as error:
                self._note_failure(name, error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
            else:
                self._note_success(name)
                backoff_s = _MIN_BACKOFF_S
        raise asyncio.CancelledError

    async def close(self, farewell: Callable[[], Awaitable[Any]]) -> None:
        """Call `farewell`, if Redis can be reached, and close the connections."""
        with suppress(*FAULTS):
            if self.state.is_up:
                await farewell()
        with suppress(*FAULTS):
            await self._client.aclose()

    async def _leave_server(self) -> None:
        """Close idle connections: after a failover they hold on to a replica, and the URL leads elsewhere."""
        with suppress(*FAULTS):
            await self._client.connection_pool.disconnect(inuse_connections=False)

    async def _repaired(self, keys: Sequence[str], ask: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await ask()
        except ResponseError as error:
            if _is_of_replica(error):
                await self._leave_server()
                return await ask()
            kinds = {key: kind for key in keys if (kind := self.keys.kind(key)) is not None}
            if not (is_of_content(error) and kinds):
                raise
            self.note_unreadable(f"{', '.join(kinds)}: {error}")
        await self._drop_other_kinds(keys=list(kinds), args=list(kinds.values()))
        return await ask()

    def _note_failure(self, name: str, error: Exception) -> None:
        if is_of_content(error):
            self.note_unreadable(f"{name}: {error}")
            self._note_success(name)
            return
        if not isinstance(error, FAULTS):
            _log.error("%s cannot go on with Redis", name, exc_info=error)
        elif not self._failing:
            _log.warning("Redis at %s fails, going on without it: %s", self._shown_url, error)
        self._failing.add(name)
        self.state.is_up = False

    def _note_success(self, name: str) -> None:
        if name in self._failing:
            self._failing.remove(name)
            if not self._failing:
                _log.info("Redis at %s is back", self._shown_url)
        if not self.state.is_up:
            self._up_since_s = self._loop.time()
        self.state.is_up = not self._failing


def _is_of_replica(error: ResponseError) -> bool:
    """True if the server is a replica, which takes no writes; Redis 6 only quotes that for scripts."""
    return isinstance(error, ReadOnlyError) or "-READONLY" in str(error)


def is_of_content(error: Exception) -> bool:
    """True if Redis answers, with what cannot be read: other keys are as they should be."""
    return isinstance(error, msgspec.MsgspecError) or (
        isinstance(error, ResponseError) and "WRONGTYPE" in str(error)
    )


async def wait_for(event: asyncio.Event, within_s: float) -> None:
    """Return when `event` is set, which clears it, or when the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    event.clear()


def _client(url: str, within_s: float) -> Redis:
    try:
        client = Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=within_s,
            socket_connect_timeout=within_s,
            **_OURS,
        )
        options = client.connection_pool.connection_kwargs
        connection = client.connection_pool.connection_class(**options)
        if isinstance(connection, SSLConnection):
            connection.ssl_context.get()
    except OSError as error:
        raise refused_url(f"names a file that cannot be used ({error.strerror or error.args})") from None
    except (ValueError, TypeError, RedisError) as error:
        raise refused_url(f"redis-py cannot use ({error})") from None
    if any(options[name] != value for name, value in _OURS.items()):
        raise refused_url(f"sets one of {', '.join(_OURS)}")
    return client
