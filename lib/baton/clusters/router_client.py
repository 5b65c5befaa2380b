"""A client's way to a running router, for the commands: its channel, its requests, its errors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Final

import grpc

from baton_core.errors import STATUS, ErrorCode, RequestError
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.routing.router_events import RequestTimings
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.generation import Delta, Finished, GenerationEvent, PromptDelta
from baton_service.router_access import RouterAccess

CONNECT_WITHIN_S: Final = 10.0
_SAMPLING_FIELDS: Final = ("max_tokens", "temperature", "top_p", "top_k", "seed")


@contextmanager
def connected(address: str, access: RouterAccess) -> Iterator[BatonStub]:
    """A stub of the router at `address`, which answers.

    Raises:
        RequestError: UNAVAILABLE, nobody answers.
    """
    with connected_channel(address, access) as channel:
        yield BatonStub(channel)  # type: ignore[no-untyped-call]


@contextmanager
def connected_channel(address: str, access: RouterAccess) -> Iterator[grpc.Channel]:
    """A channel to the router at `address`, which answers; its calls name the key.

    Raises:
        RequestError: UNAVAILABLE, nobody answers.
    """
    with access.open_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_WITHIN_S)
        except grpc.FutureTimeoutError:
            how = "by TLS" if access.is_encrypted else "in plain text; a router with TLS wants --ssl-ca-certs"
            raise RequestError(ErrorCode.UNAVAILABLE, f"no router answers at {address} {how}") from None
        yield channel


def sampled_request(args: argparse.Namespace) -> pb.GenerateRequest:
    """A request without a prompt, with the sampling parameters that the command line gives."""
    given = {name: getattr(args, name) for name in _SAMPLING_FIELDS if getattr(args, name) is not None}
    return pb.GenerateRequest(model=args.model_name, sampling_params=pb.SamplingParams(**given))


def request_error(error: grpc.RpcError) -> RequestError:
    """The error that a call ended with."""
    name = error.code().name
    code = next((code for code, status in STATUS.items() if status.grpc == name), ErrorCode.INTERNAL)
    return RequestError(code, error.details())


def decode_event(event: pb.GenerateEvent) -> GenerationEvent:
    """Read an event of a `Generate` call."""
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
