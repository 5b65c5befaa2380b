"""The shell around the router's core: tells it what happens and does what it asks.

Everything here runs on the router's loop, without waiting. What goes wrong with one effect ends the request
that it is for, and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, assert_never

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_core.fleet import Fleet
from baton_core.request_flow import name_at_client
from baton_core.router_core import RouterConfig, RouterCore
from baton_core.router_events import (
    ClientGone,
    EmitTokens,
    FailRequest,
    FinishRequest,
    RouterEffect,
    RouterEvent,
    SendToWorker,
    StopMatched,
    Submit,
    WorkerJoined,
    WorkerLeft,
    WorkerReported,
    WorkerSaid,
)
from baton_core.router_messages import Cancel, Start
from baton_core.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.worker_info import WorkerInfo
from baton_router.client_stream import ClientStream
from baton_service.session_server import SessionServer, WorkerCallbacks

_MIN_TIMER_S: Final = 0.001
"""Between two looks at the deadlines, so that one which is never met cannot keep the loop busy."""
_log = logging.getLogger(__name__)


class Router:
    """Owns the core, the workers' sessions and the streams of running requests. Make it on its loop.

    Args:
        epoch: as of `SessionServer`.
        on_ready_changed: called whenever `is_ready` has changed.
    """

    def __init__(
        self,
        config: RouterConfig,
        *,
        router_id: str,
        epoch: int,
        on_ready_changed: Callable[[], None],
        timings: SessionTimings = DEFAULT_TIMINGS,
    ) -> None:
        self._core = RouterCore(config)
        self._streams: dict[str, ClientStream] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._on_ready_changed = on_ready_changed
        self._was_ready = False
        callbacks = WorkerCallbacks(
            on_joined=self._on_joined,
            on_message=lambda name, message: self._take(WorkerSaid(worker_id=name, message=message)),
            on_load=lambda name, load: self._take(WorkerReported(worker_id=name, load=load)),
            on_left=self._on_left,
        )
        self.sessions = SessionServer(router_id, epoch, callbacks, timings)

    @property
    def fleet(self) -> Fleet:
        """The workers; to be read only."""
        return self._core.fleet

    @property
    def is_ready(self) -> bool:
        """Whether a prompt can be served now."""
        return self.fleet.is_ready

    def submit(self, stream: ClientStream, timeout_s: float) -> None:
        """Start a request; from here on its stream gets exactly one end.

        Raises:
            InvalidRequestError: a running request has its name.
        """
        if stream.request_id in self._streams:
            allowed = "a name that no running request has"
            raise InvalidRequestError("request_id", stream.request_id, allowed)
        self._streams[stream.request_id] = stream
        try:
            self._take(Submit(spec=stream.spec, timeout_s=timeout_s))
        except Exception as error:
            self._take(self._give_up(stream.request_id, error))

    def abandon(self, stream: ClientStream) -> None:
        """Say that nobody reads the stream any more; nothing if its request is over."""
        if self._streams.get(stream.request_id) is stream:
            self._take(ClientGone(request_id=stream.request_id))

    def close(self, reason: str) -> None:
        """End all requests as UNAVAILABLE and all sessions."""
        for request_id in list(self._streams):
            error = RequestError(ErrorCode.UNAVAILABLE, reason)
            self._take(self._give_up(request_id, error))
        self.sessions.close()
        if self._timer is not None:
            self._timer.cancel()

    # --- workers ---

    def _on_joined(self, info: WorkerInfo) -> None:
        self._take(WorkerJoined(info=info))
        _log.info(
            "worker %s joined: role %s, %d blocks of %d tokens, at most %d tokens a sequence",
            *(info.worker_id, info.role, info.num_blocks, info.identity.block_size, info.max_model_len),
        )
        self._note_ready()

    def _on_left(self, worker_id: str, reason: str) -> None:
        self._take(WorkerLeft(worker_id=worker_id, reason=reason))
        self._note_ready()

    def _note_ready(self) -> None:
        if self.is_ready != self._was_ready:
            self._was_ready = self.is_ready
            _log.info("ready" if self.is_ready else "not ready: a worker for prefill or decode is missing")
            self._on_ready_changed()

    # --- events and effects ---

    def _take(self, event: RouterEvent) -> None:
        self._perform(self._core.on_event(self._loop.time(), event))
        self._arm()

    def _perform(self, effects: list[RouterEffect]) -> None:
        """Do what the core asks, then tell it what came of that."""
        for event in [event for event in map(self._perform_one, effects) if event is not None]:
            self._perform(self._core.on_event(self._loop.time(), event))

    def _perform_one(self, effect: RouterEffect) -> RouterEvent | None:
        try:
            match effect:
                case SendToWorker(worker_id=worker_id, message=message):
                    self.sessions.send(worker_id, message)
                case EmitTokens():
                    return self._emit(effect)
                case FinishRequest():
                    self._finish(effect)
                case FailRequest():
                    self._fail(effect)
                case _:
                    assert_never(effect)
        except Exception as error:
            return self._give_up(self._request_of(effect), error)
        return None

    def _emit(self, effect: EmitTokens) -> StopMatched | None:
        output = effect.output
        stream = self._streams.get(output.request_id)
        is_stopped = stream is not None and stream.push(output)
        return StopMatched(request_id=output.request_id, index=output.index) if is_stopped else None

    def _finish(self, effect: FinishRequest) -> None:
        if (stream := self._streams.get(effect.request_id)) is not None:
            stream.finish(effect)
            del self._streams[effect.request_id]
            _log_finished(effect, stream.num_sent_tokens)

    def _fail(self, effect: FailRequest) -> None:
        if (stream := self._streams.pop(effect.request_id, None)) is not None:
            stream.fail(RequestError(effect.code, effect.message))
            _log_failed(effect.request_id, effect.code, effect.message)

    def _give_up(self, request_id: str, error: Exception) -> ClientGone:
        """End a request that this shell cannot go on with; the core lets its workers know."""
        match error:
            case BatonError():
                code, message = error.code, str(error)
            case _:
                _log.error("cannot go on", exc_info=error, extra={"request_id": request_id})
                code, message = ErrorCode.INTERNAL, "internal error; the router's log has the cause"
        self._fail(FailRequest(request_id=request_id, code=code, message=message))
        return ClientGone(request_id=request_id)

    def _request_of(self, effect: RouterEffect) -> str:
        match effect:
            case EmitTokens(output=output):
                return output.request_id
            case SendToWorker(message=message):
                attempt_id = (
                    message.request_id if isinstance(message, Start | Cancel) else message.spec.request_id
                )
                return name_at_client(attempt_id)
            case FinishRequest(request_id=request_id) | FailRequest(request_id=request_id):
                return request_id
        assert_never(effect)

    # --- time ---

    def _arm(self) -> None:
        """Keep one timer, which fires no later than the core's next deadline."""
        deadline = self._core.next_deadline()
        if deadline is None or (self._timer is not None and self._timer.when() <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(max(deadline, self._loop.time() + _MIN_TIMER_S), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._perform(self._core.on_deadline(self._loop.time()))
        finally:
            self._arm()


def _log_finished(finished: FinishRequest, num_sent_tokens: int) -> None:
    timings = finished.timings
    workers = (timings.prefill_worker, timings.decode_worker)
    _log.info(
        "finished on %s: %d prompt tokens (%d cached), %d new; queue %.1f ms, prefill %.1f ms,"
        " transfer %.1f ms (%d bytes), first token %.1f ms, then %.1f ms each; %.3f s in all",
        " and ".join(dict.fromkeys(name for name in workers if name)),
        finished.num_prompt_tokens,
        finished.num_cached_tokens,
        num_sent_tokens,
        *(1e3 * seconds for seconds in (timings.queue_s, timings.prefill_s, timings.transfer_s)),
        timings.transferred_bytes,
        *(1e3 * seconds for seconds in (timings.first_token_s, timings.per_token_s)),
        timings.total_s,
        extra={"request_id": finished.request_id},
    )


def _log_failed(request_id: str, code: ErrorCode, message: str) -> None:
    _log.info("ended as %s: %s", code, message, extra={"request_id": request_id})
