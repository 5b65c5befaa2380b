"""Comparisons of two engines' answers, outputs and HTTP: the differences have names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

TOLERANCE: Final = 1e-4
"""The most by which log-probabilities in float32 are apart."""
_FIELDS: Final = ("index", "token_ids", "text", "finish_reason", "stop_reason")
_RESULTS: Final = frozenset(
    [
        *("content", "text", "arguments", "finish_reason", "stop_reason", "tokens", "count"),
        *("token_ids", "prompt_token_ids", "prompt_tokens", "completion_tokens"),
    ]
)
"""Keys whose values are the same in both answers."""
_DESCRIPTIONS: Final = ("paths", "components")
_LOGPROBS: Final = ("logprobs", "prompt_logprobs")
"""Compared to a tolerance with sets of parameters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    content_type: str
    body: bytes


def output_differences(peer: Any, ours: Any) -> Iterator[str]:
    """Name what differs between the outputs of one set of parameters, each aspect once."""
    if is_error(peer) or is_error(ours):
        if is_error(peer) is not is_error(ours):
            yield "refused" if is_error(ours) else "not refused"
        return
    pairs = list(zip(peer, ours, strict=True))
    yield from dict.fromkeys(aspect for one in pairs for aspect in _prompt_differences(*one))


def is_error(answers: Any) -> bool:
    """Return whether the set was refused."""
    return isinstance(answers, dict)


def _prompt_differences(peer: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    if peer["prompt_token_ids"] != ours["prompt_token_ids"]:
        yield "prompt_token_ids"
    yield from (
        f"prompt {one}" for one in _logprob_differences(peer["prompt_logprobs"], ours["prompt_logprobs"])
    )
    if len(peer["outputs"]) != len(ours["outputs"]):
        yield "number of outputs"
    for theirs, own in zip(peer["outputs"], ours["outputs"], strict=False):
        yield from (name for name in _FIELDS if theirs[name] != own[name])
        if not _is_near(theirs["cumulative_logprob"], own["cumulative_logprob"], len(own["token_ids"])):
            yield "cumulative_logprob"
        yield from _logprob_differences(theirs["logprobs"], own["logprobs"])


def _logprob_differences(peer: Any, ours: Any) -> Iterator[str]:
    if (peer is None) is not (ours is None) or len(peer or ()) != len(ours or ()):
        yield "number of log-probabilities"
        return
    for theirs, own in zip(peer or (), ours or (), strict=True):
        if not theirs or not own:
            if theirs != own:
                yield "log-probabilities of a position"
            continue
        if theirs.keys() != own.keys():
            yield "listed tokens"
        for token in theirs.keys() & own.keys():
            (value, rank, text), (own_value, own_rank, own_text) = theirs[token], own[token]
            if not _is_near(value, own_value):
                yield "log-probabilities"
            if rank != own_rank:
                yield "ranks"
            if text != own_text:
                yield "decoded_token"


def _is_near(one: float | None, other: float | None, scale: int = 1) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or abs(one - other) <= TOLERANCE * max(1, scale)


def answer_differences(peer: Answer, ours: Answer) -> Iterator[str]:
    """Name what differs between two HTTP answers: status, keys, results, the order of a stream's events."""
    if peer.status != ours.status:
        yield f"status {peer.status}, here {ours.status}"
        return
    theirs, own = _read(peer), _read(ours)
    if isinstance(theirs, str) or isinstance(own, str):
        if isinstance(theirs, str) is not isinstance(own, str):
            yield "JSON" if isinstance(own, str) else "text"
        return
    events, own_events = stream_events(peer), stream_events(ours)
    if events != own_events:
        yield f"events {' '.join(events)}, here {' '.join(own_events)}"
    keys, own_keys = _keys(theirs), _keys(own)
    for key in _outermost(keys.keys() - own_keys.keys()):
        yield f"without {key}" if keys[key] else f"without null {key}"
    yield from (f"with {key}" for key in _outermost(own_keys.keys() - keys.keys()))
    results, own_results = _results(theirs), _results(own)
    yield from (
        f"another {key}"
        for key in sorted(results.keys() | own_results.keys())
        if results.get(key) != own_results.get(key)
    )


def stream_events(answer: Answer) -> list[str]:
    """The kinds of a stream's events in order, choice by choice, each run of one kind once; else nothing."""
    if not answer.content_type.startswith("text/event-stream"):
        return []
    data = _data(answer.body.decode())
    events = [(None, "[DONE]") if one == "[DONE]" else _event(json.loads(one)) for one in data]
    choices: list[int | None] = [*sorted({choice for choice, _ in events if choice is not None})] or [None]
    return [
        kind
        for choice in choices
        for kind, _ in groupby(kind for index, kind in events if index in (choice, None))
    ]


def _event(chunk: Mapping[str, Any]) -> tuple[int | None, str]:
    """A chunk's choice, None where it is of all, and its kind."""
    choices = chunk.get("choices")
    return (choices[0].get("index", 0) if choices else None), _kind(chunk)


def _kind(chunk: Mapping[str, Any]) -> str:
    if "error" in chunk:
        return "error"
    if not chunk.get("choices"):
        return "usage"
    choice = chunk["choices"][0]
    if choice.get("finish_reason"):
        return "finish"
    return "role" if choice.get("delta", {}).get("role") else "content"


def _read(answer: Answer) -> Any:
    """The JSON of an answer, of a stream the list of its chunks, or text."""
    text = answer.body.decode(errors="replace")
    if answer.content_type.startswith("text/event-stream"):
        return [json.loads(one) for one in _data(text) if one != "[DONE]"]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _data(stream: str) -> list[str]:
    """The texts of a stream's events."""
    return [line[5:].strip() for line in stream.splitlines() if line.startswith("data:")]


def _keys(value: Any) -> dict[str, bool]:
    """The paths of all keys, and whether one of their values is not null."""
    found: dict[str, bool] = {}
    for key, is_set in _paths(value):
        found[key] = found.get(key, False) or is_set
    return found


def _paths(value: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    """Keys that are numbers count as one; those of an OpenAPI description are left out."""
    if isinstance(value, dict):
        for name, inner in value.items():
            known = "*" if name.isdigit() else name
            yield f"{path}{known}", inner is not None
            if known not in _DESCRIPTIONS:
                yield from _paths(inner, f"{path}{known}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, f"{path.removesuffix('.')}[].")


def _results(answer: Any) -> dict[str, Any]:
    """The values of `_RESULTS` by path; those of a stream's chunks are put together, of numbers the last."""
    found: dict[str, Any] = {}
    for path, value in _result_pieces(answer):
        is_part = path in found and isinstance(value, str | list)
        found[path] = found[path] + value if is_part else value
    return found


def _result_pieces(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Choices are told apart by their index; empty texts count as none."""
    if isinstance(value, list):
        for inner in value:
            yield from _result_pieces(inner, path)
    elif isinstance(value, dict):
        stem = f"{path}{value['index']}." if "index" in value else path
        for name, inner in value.items():
            if name not in _RESULTS:
                if name not in _DESCRIPTIONS + _LOGPROBS:
                    yield from _result_pieces(inner, f"{stem}{name}.")
            elif inner is not None and inner not in ("", []):
                yield f"{stem}{name}", inner


def _outermost(keys: set[str]) -> Sequence[str]:
    """Without those that lie in another of them."""
    return sorted(
        key for key in keys if not any(key != one and key.startswith((f"{one}.", f"{one}[")) for one in keys)
    )
