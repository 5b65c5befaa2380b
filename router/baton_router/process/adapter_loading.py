"""Loads and unloads LoRA adapters while a router serves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial

from baton_core.errors import ErrorCode, RequestError
from baton_core.sessions.control_messages import ControlAction
from baton_router.operations.operations import read_results
from baton_router.process.call_timeout import ends_within
from baton_router.process.router import Router
from baton_router.requests.served_adapters import ServedAdapters
from baton_router.text.tokenizing_threads import Lane, TokenizingThreads


class AdapterLoading:
    """Changes the adapters that are served here, and by the other routers of a cluster.

    Args:
        timeout_s: for each change.
    """

    def __init__(
        self, adapters: ServedAdapters, threads: TokenizingThreads, router: Router, timeout_s: float
    ) -> None:
        self._adapters = adapters
        self._threads = threads
        self._router = router
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        """Held by one change at a time."""

    async def load(
        self,
        name: str,
        path: str,
        *,
        replaces: bool = False,
        digest: str = "",
        number: int = 0,
        shown_name: str = "",
    ) -> None:
        """Serve the adapter of a folder under a name, once every worker has found that it fits the model.

        A worker that is lost meanwhile is left out, unless none remains. `digest` is the folder's, and
        `number` and `shown_name` the adapter's, where the caller knows them.

        Raises:
            InvalidRequestError: the name is taken, or the folder cannot be used.
            RequestError: OVERLOADED, or what a worker says of it. INTERNAL, the digest is another.
        """
        read = partial(self._adapters.read, name, path, replaces=replaces)
        adapter = await self._threads.run("", Lane.LONG, read)
        adapter = replace(adapter, number=number, shown_name=shown_name)
        if digest and adapter.digest != digest:
            text = f"the adapter of {path!r} could not be loaded: its folder is not as when it was named"
            raise RequestError(ErrorCode.INTERNAL, text)
        argument = json.dumps({"path": adapter.path, "digest": adapter.digest})
        async with ends_within(self._timeout_s), self._turn:
            if adapter in self._adapters.adapters:
                return
            self._adapters.check_place(name, replaces)
            check = ControlAction.CHECK_ADAPTER
            results = await self._router.operations.control(check, argument, self._timeout_s, ())
            left = {one: result for one, result in results.items() if result.code != ErrorCode.WORKER_LOST}
            read_results(left or results)
            await self._router.share.put_adapter(adapter)
            self._adapters.add(adapter, replaces=replaces)

    async def unload(self, name: str) -> None:
        """Serve an adapter no longer; its running requests go on.

        Raises:
            RequestError: NOT_FOUND, or UNAVAILABLE: Redis is away, and it is served still.
        """
        async with ends_within(self._timeout_s), self._turn:
            self._adapters.check_served(name)
            await self._router.share.remove_adapter(name)
            self._adapters.remove(name)
