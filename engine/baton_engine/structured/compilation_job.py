"""A grammar in the compiler, and the requests that wait for it."""

from __future__ import annotations

from concurrent.futures import Future

from baton_core.errors import BatonError
from baton_core.requests.structured_outputs import StructuredOutputsParams


class CompilationJob:
    """One grammar that a tenant asked for, however many of its requests wait for it."""

    def __init__(self, name: str, tenant: str, params: StructuredOutputsParams, since_s: float) -> None:
        self.name = name
        self.tenant = tenant
        self.params = params
        self.since_s = since_s
        self.asked_s = since_s
        """Time of the last request for it."""
        self._followers: list[Future[None]] = []

    @property
    def key(self) -> tuple[str, StructuredOutputsParams]:
        """The key by which two jobs are the same."""
        return self.tenant, self.params

    @property
    def is_pending(self) -> bool:
        """True if a request still waits for it."""
        return not all(future.cancelled() for future in self._followers)

    def follow(self, now: float) -> Future[None]:
        """Return a future of one that waits from now on; cancelling it cancels nobody else's."""
        self.asked_s = now
        future: Future[None] = Future()
        self._followers.append(future)
        return future

    def end(self, error: BatonError | None) -> None:
        """Tell all that wait. None comes after that."""
        followers, self._followers = self._followers, []
        for future in followers:
            if not future.set_running_or_notify_cancel():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)
