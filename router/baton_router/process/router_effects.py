"""Carries out the effects of a router's core: messages to workers, events and ends of clients' streams.

Everything here runs on the router's loop, without waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from baton_core.errors import BatonError, ErrorCode, RequestError
from baton_core.sessions.router_messages import PromptLogprobs, RequestCommand
from baton_router.core.flow.request_log import RequestLog
from baton_router.core.router_events import ClientGone, EmitTokens, FailRequest, FinishRequest, SetRole
from baton_router.metrics.request_metrics import RequestMetrics
from baton_router.operations.role_shifts import RoleShifts
from baton_router.process.session_server import SessionServer
from baton_router.streams.client_stream import ClientStream
from baton_router.streams.request_spans import RequestSpans

_log = logging.getLogger(__name__)


class RouterEffects:
    """The outlets of a router's driver, and the streams of its running requests."""

    def __init__(
        self,
        sessions: SessionServer,
        shifts: RoleShifts,
        log: RequestLog,
        requests: RequestMetrics,
        spans: RequestSpans,
    ) -> None:
        self.streams: dict[str, ClientStream] = {}
        """Streams by the names of their requests, until their ends."""
        self.send_to_worker: Callable[[str, RequestCommand], None] = sessions.send
        self.set_role: Callable[[SetRole], None] = shifts.begin
        self._log = log
        self._requests = requests
        self._spans = spans
        self._loop = asyncio.get_running_loop()

    def emit_tokens(self, tokens: EmitTokens) -> bool:
        stream = self.streams.get(tokens.request_id)
        if stream is None:
            return False
        stream.note_weights(tokens.weights)
        is_stopped = stream.push(tokens.output, tokens.num_cached_tokens)
        self._requests.on_tokens(stream, tokens.output)
        return is_stopped

    def emit_prompt_logprobs(self, prompt_logprobs: PromptLogprobs) -> None:
        if (stream := self.streams.get(prompt_logprobs.request_id)) is not None:
            stream.push_prompt(prompt_logprobs)

    def finish(self, finished: FinishRequest) -> None:
        if (stream := self.streams.get(finished.request_id)) is not None:
            stream.finish(finished)
            del self.streams[finished.request_id]
            self._note_ended(stream, finished)
            _log_finished(finished, stream.num_sent_tokens)

    def fail(self, failed: FailRequest) -> None:
        if (stream := self.streams.pop(failed.request_id, None)) is not None:
            stream.fail(RequestError(failed.code, failed.message, failed.retry_after_s))
            self._note_ended(stream, failed)
            _log_failed(failed.request_id, failed.code, failed.message)

    def give_up(self, request_id: str, error: Exception) -> ClientGone:
        """End a request that cannot continue here; the core notifies its workers."""
        match error:
            case BatonError():
                code, message = error.code, str(error)
            case _:
                _log.error("the request cannot continue", exc_info=error, extra={"request_id": request_id})
                code, message = ErrorCode.INTERNAL, "internal error; the router's log has the cause"
        self.fail(FailRequest(request_id=request_id, code=code, message=message))
        return ClientGone(request_id=request_id, code=code, message=message)

    def _note_ended(self, stream: ClientStream, end: FinishRequest | FailRequest) -> None:
        record = self._log.get(end.request_id)
        now, request = self._loop.time(), stream.request
        self._requests.on_ended(now, stream, end, record)
        self._spans.on_ended(now, stream.text, end, record, is_chat=request.is_chat, model=request.model)


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
    if code is ErrorCode.INVALID_REQUEST:  # the value, which is the client's text, stays out of logs
        message = f"{message.partition(' is ')[0]:.100} is invalid"
    _log.info("ended as %s: %s", code, message, extra={"request_id": request_id})
