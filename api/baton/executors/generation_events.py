"""Events of a `Generate` call as the router has them: the other direction of its gRPC service."""

from __future__ import annotations

from dataclasses import fields, replace

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import PooledValues
from baton_proto.v1 import baton_pb2 as pb
from baton_router.core.router_events import RequestTimings
from baton_router.requests.generation import Delta, Finished, GenerationEvent, PromptDelta


class EventReader:
    """Reads the events of one `Generate` call, and puts together what was pooled, which comes in parts."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()
        self._parts: list[bytes] = []

    def read(self, event: pb.GenerateEvent) -> GenerationEvent | None:
        """Return the next event; None where more has to come."""
        if event.WhichOneof("event") == "pooled":
            self._shape = tuple(event.pooled.shape)
            self._parts.append(event.pooled.values)
            return None
        decoded = decode_event(event)
        if isinstance(decoded, Finished) and self._parts:
            return replace(decoded, pooled=PooledValues(shape=self._shape, values=b"".join(self._parts)))
        return decoded


def decode_event(event: pb.GenerateEvent) -> GenerationEvent:
    """Read an event of a `Generate` call that is no part of what was pooled."""
    match event.WhichOneof("event"):
        case "tokens":
            tokens = event.tokens
            which = tokens.WhichOneof("stop_reason")
            return Delta(
                index=tokens.index,
                text=tokens.text,
                token_ids=tuple(tokens.token_ids),
                logprobs=tuple(map(_decode_logprobs, tokens.logprobs)),
                finish_reason=tokens.finish_reason or None,
                stop_reason=getattr(tokens, which) if which else None,
                num_cached_tokens=tokens.cached_tokens if tokens.HasField("cached_tokens") else None,
            )
        case "prompt_logprobs":
            entries = tuple(map(_decode_logprobs, event.prompt_logprobs.entries))
            return PromptDelta(start=event.prompt_logprobs.start, logprobs=entries)
        case _:
            return _decode_finished(event.finished)


def _decode_logprobs(entry: pb.PositionLogprobs) -> PositionLogprobs:
    return PositionLogprobs(
        token_ids=tuple(entry.token_ids), logprobs=tuple(entry.logprobs), ranks=tuple(entry.ranks)
    )


def _decode_finished(finished: pb.FinishedEvent) -> Finished:
    timings = finished.timings
    return Finished(
        request_id=finished.request_id,
        num_prompt_tokens=finished.usage.prompt_tokens,
        num_output_tokens=finished.usage.completion_tokens,
        num_cached_tokens=finished.usage.cached_tokens,
        seed=finished.seed,
        timings=RequestTimings(**{one.name: getattr(timings, one.name) for one in fields(RequestTimings)}),
    )
