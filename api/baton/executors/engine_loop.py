"""The crossing between asynchronous callers and an engine that computes on a thread of its own.

Callers queue commands; the thread runs them between steps and hands what a step brought to their loops.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from baton.executors.executor import ExecutorEvent, ExecutorLoad, Inbox
from baton.executors.in_process_executor import InProcessExecutor
from baton_core.errors import BatonError, EngineDeadError, ErrorCode
from baton_core.sessions.router_messages import RequestSpec
from baton_router.requests.generation import Finished
from baton_router.text.tokenization import Tokenizer
from baton_worker.controls.engine_operations import Control, FinishWeightUpdate
from baton_worker.worker_process import WorkerSettings

T = TypeVar("T")
_CLOSE_WITHIN_S = 30.0
_LOAD_WITHIN_S = 1.0


class EngineLoop:
    """Runs an executor of this process. Its callers bound the open requests, and so its queue."""

    def __init__(self, settings: WorkerSettings, tokenizer: Tokenizer) -> None:
        self._executor = InProcessExecutor(settings, tokenizer)
        self.max_model_len, self.num_blocks = self._executor.max_model_len, self._executor.num_blocks
        self.pooling = self._executor.pooling
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._inboxes: dict[str, Inbox] = {}
        """Inboxes of the open requests; only the thread uses them, and what follows."""
        self._switch: Callable[[], None] | None = None
        """Changes the weights once no request is open."""
        self._held: dict[str, tuple[RequestSpec, Inbox]] = {}
        """Requests that have come since then, by id."""
        self._error: EngineDeadError | None = None
        self._last_load = ExecutorLoad()
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and self._error is None

    def submit(self, spec: RequestSpec, inbox: Inbox) -> None:
        """Take a request; its events, or its error, come into the inbox.

        Raises:
            EngineDeadError: the engine has failed, or is closed.
        """
        self._require_running()
        self._commands.put(partial(self._submit, spec, inbox))

    def abort(self, request_id: str) -> None:
        """End a request without further events."""
        self._commands.put(partial(self._abort, request_id))

    async def control(self, command: Control) -> list[Any]:
        """Do what an operator asks, between two steps.

        The weights change when the open requests have ended; those that come meanwhile wait.

        Raises:
            InvalidRequestError: it cannot be done now, or names nothing that there is.
            RequestError: the engine sleeps, has failed, or is closed.
        """
        return await self._call(
            partial(self._executor.control, command), is_switch=isinstance(command, FinishWeightUpdate)
        )

    async def load(self) -> ExecutorLoad:
        """Return the current load of the worker."""
        return await self._call(self._executor.load)

    def load_now(self) -> ExecutorLoad:
        """Return the load after the step in flight, or the one read before if that takes long.

        Raises:
            EngineDeadError: the engine has failed, or is closed.
        """
        answer = self._ask(self._executor.load)
        with suppress(TimeoutError):
            self._last_load = answer.result(_LOAD_WITHIN_S)
        return self._last_load

    def close(self) -> None:
        """End after the step in flight."""
        self._commands.put(None)
        self._thread.join(_CLOSE_WITHIN_S)

    async def _call(self, function: Callable[[], T], *, is_switch: bool = False) -> T:
        return await asyncio.wrap_future(self._ask(function, is_switch=is_switch))

    def _ask(self, function: Callable[[], T], *, is_switch: bool = False) -> Future[T]:
        self._require_running()
        answer: Future[T] = Future()
        command = partial(_answer, answer, function)
        self._commands.put(partial(self._when_idle, command) if is_switch else command)
        return answer

    def _require_running(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._thread.is_alive():
            raise EngineDeadError(ErrorCode.UNAVAILABLE, "the engine is shut down")

    # --- on the thread ---

    def _run(self) -> None:
        try:
            while self._run_commands():
                if not self._is_idle:
                    self._deliver(self._executor.step())
                if not self._inboxes:
                    self._run_switch()
            error = EngineDeadError(ErrorCode.UNAVAILABLE, "the engine is shut down")
        except Exception as failure:
            error = EngineDeadError(
                ErrorCode.INTERNAL, f"the engine failed: {type(failure).__name__}: {failure}"
            )
        self._error = error
        with suppress(Empty):
            while True:
                if (command := self._commands.get_nowait()) is not None:
                    command()
        self._run_switch()
        self._deliver([(request_id, error) for request_id in self._inboxes])
        self._executor.close()

    @property
    def _is_idle(self) -> bool:
        return not self._inboxes or self._executor.is_sleeping

    def _run_commands(self) -> bool:
        """Run what waits, and wait for it when there is nothing else to do; False when it is to end."""
        commands = [self._commands.get()] if self._is_idle else []
        with suppress(Empty):
            while True:
                commands.append(self._commands.get_nowait())
        for command in commands:
            if command is None:
                return False
            command()
        return True

    def _when_idle(self, switch: Callable[[], None]) -> None:
        """Note what is to run once no request is open; now where none is, or where nothing would end them."""
        if self._is_idle or self._switch is not None:
            switch()
        else:
            self._switch = switch

    def _run_switch(self) -> None:
        """Run it, and submit the requests that it has held back."""
        switch, self._switch = self._switch, None
        if switch is not None:
            switch()
        held, self._held = self._held, {}
        for spec, inbox in held.values():
            self._submit(spec, inbox)

    def _submit(self, spec: RequestSpec, inbox: Inbox) -> None:
        if self._switch is not None:
            self._held[spec.request_id] = (spec, inbox)
            return
        self._inboxes[spec.request_id] = inbox
        try:
            self._executor.submit(spec)
        except BatonError as error:
            self._deliver([(spec.request_id, error)])

    def _abort(self, request_id: str) -> None:
        self._held.pop(request_id, None)
        if self._inboxes.pop(request_id, None) is not None:
            self._executor.abort((request_id,))

    def _deliver(self, events: list[tuple[str, ExecutorEvent]]) -> None:
        by_inbox: defaultdict[Inbox, list[ExecutorEvent]] = defaultdict(list)
        for request_id, event in events:
            if (inbox := self._inboxes.get(request_id)) is not None:
                by_inbox[inbox].append(event)
                if isinstance(event, Finished | Exception):
                    del self._inboxes[request_id]
        for inbox, events_of_one in by_inbox.items():
            with suppress(RuntimeError):  # its loop is closed: nobody reads it
                inbox.loop.call_soon_threadsafe(inbox.put, events_of_one)


def _answer(answer: Future[T], function: Callable[[], T]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(function())
    except BaseException as error:
        answer.set_exception(error)
