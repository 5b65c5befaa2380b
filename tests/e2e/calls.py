"""Requests over gRPC, and their answers in the shape that `LLM` returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from baton import CompletionOutput, SamplingParams
from baton.executors.request_encoder import encode_params
from baton_proto.v1 import baton_pb2 as pb


def draw_prompt(num_tokens: int, seed: int) -> list[int]:
    """Token ids that are no special tokens in any of the models here."""
    return Random(seed).choices(range(4, 500), k=num_tokens)


def greedy(max_tokens: int, **params: object) -> SamplingParams:
    """Exactly `max_tokens` tokens, unless `params` stop them."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **params})


def ask(prompt: str | Sequence[int], params: SamplingParams) -> pb.GenerateRequest:
    request = pb.GenerateRequest(sampling_params=encode_params(params.frozen()))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def answer(events: Iterable[pb.GenerateEvent]) -> tuple[list[CompletionOutput], pb.FinishedEvent]:
    """Put a whole stream together: its sequences in order, and its one end."""
    *tokens, last = events
    assert all(event.HasField("tokens") for event in tokens)
    assert last.HasField("finished")
    streams: dict[int, list[pb.TokensEvent]] = {}
    for event in tokens:
        streams.setdefault(event.tokens.index, []).append(event.tokens)
    assert sorted(streams) == list(range(len(streams)))
    return [_completion(index, streams[index]) for index in sorted(streams)], last.finished


def _completion(index: int, events: Sequence[pb.TokensEvent]) -> CompletionOutput:
    assert [bool(event.finish_reason) for event in events] == [False] * (len(events) - 1) + [True]
    which = events[-1].WhichOneof("stop_reason")
    return CompletionOutput(
        index=index,
        text="".join(event.text for event in events),
        token_ids=[token_id for event in events for token_id in event.token_ids],
        finish_reason=events[-1].finish_reason,
        stop_reason=getattr(events[-1], which) if which else None,
    )
