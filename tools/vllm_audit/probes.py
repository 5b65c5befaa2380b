"""Ways to try an item, each for many items."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final

from baton import AsyncEngineArgs
from baton.api.configured_engine import ConfiguredEngine
from baton.commands import cli_arguments
from baton.config.worker_parts import worker_settings
from baton_core.errors import InvalidModelError
from tools.vllm_audit.subjects import MODEL, expect, said
from tools.vllm_audit.verdict import DifferentError, Probe

Effect = Callable[[], object]


def name(text: str, *, member: str = "") -> Probe:
    """`from baton import NAME` finds something, and its class has the member."""

    def probe() -> str:
        found = imported("baton", text)
        if member:
            shown = getattr(found, "__dataclass_fields__", {})
            expect_attribute(found, member) if member not in shown else None
        return f"{found.__module__}.{found.__qualname__}" if hasattr(found, "__qualname__") else repr(found)

    return probe


def imported(module: str, text: str) -> Any:
    """Do what `from MODULE import TEXT` does, which keeps the words of an ImportError alone."""
    try:
        return getattr(__import__(module, fromlist=[text]), text)
    except AttributeError as error:
        raise ImportError(f"cannot import name {text!r} from {module!r}") from error


def expect_attribute(subject: Any, path: str) -> Any:
    """The attribute at a dotted path."""
    for part in path.split("."):
        subject = getattr(subject, part)
    return subject


def attribute(subject: Callable[[], Any], path: str) -> Probe:
    """The subject has something at the path that is not None."""

    def probe() -> None:
        expect(expect_attribute(subject(), path) is not None, "it is None")

    return probe


def parameter(function: Callable[[], Any], text: str, *, position: int | None = None) -> Probe:
    """A function names the parameter in its signature, at this place if one is given."""

    def probe() -> None:
        parameters = list(inspect.signature(function()).parameters.values())
        names = [one.name for one in parameters]
        if text not in names:
            raise AttributeError(f"{function().__qualname__} has no attribute {text!r}")
        if position is not None:
            place = [one for one in parameters if one.kind is not one.KEYWORD_ONLY and one.name != "self"]
            at = [one.name for one in place][position : position + 1]
            expect(at == [text], f"parameter {position} is {at or 'none'}")

    return probe


def all_of(*probes: Probe) -> Probe:
    """Every probe holds."""

    def probe() -> None:
        for one in probes:
            one()

    return probe


def gives(call: Callable[[], Any], expected: Any) -> Probe:
    """A call's result equals what vLLM documents."""

    def probe() -> None:
        result = call()
        expect(result == expected, f"{result!r} instead of {expected!r}")

    return probe


def holds(call: Callable[[], Any], otherwise: str = "it has no such effect") -> Probe:
    """A call's result is true."""
    return lambda: expect(call(), otherwise)


def raises(call: Callable[[], Any], *words: str) -> Probe:
    """A call is refused as vLLM documents, in words that name these."""

    def probe() -> str:
        try:
            call()
        except Exception as error:
            if all(word in str(error) for word in words):
                return str(error)
            raise
        raise DifferentError("it is not refused")

    return probe


def field(text: str, value: Any, effects: Mapping[str, Effect]) -> Probe:
    """An engine argument is taken, and its effect, the workers' settings or the log show it."""

    def probe() -> str:
        with said() as texts:
            args = AsyncEngineArgs(**{"model": MODEL, **NEEDED.get(text, {}), text: value})
            with suppress(InvalidModelError):  # an engine's start says what it takes without effect
                ConfiguredEngine(replace(args, model="/nonexistent"), None, {})
        return _shown(text, texts, effects, lambda: _told(args) != _told_by_default())

    return probe


NEEDED: Final[Mapping[str, Mapping[str, int]]] = {
    "kv_cache_metrics_sample": {"kv_cache_metrics": True},
    "nnodes": {"tensor_parallel_size": 2},
    "node_rank": {"tensor_parallel_size": 2, "nnodes": 2},
    "enable_expert_parallel": {"tensor_parallel_size": 2},
    "expert_placement_strategy": {"tensor_parallel_size": 2},
    "data_parallel_external_lb": {"data_parallel_size": 2, "data_parallel_rank": 1},
    "data_parallel_start_rank": {"data_parallel_size": 2},
    "data_parallel_size_local": {"data_parallel_size": 2},
    "max_cpu_loras": {"enable_lora": True},
    "max_lora_rank": {"enable_lora": True},
}
"""Other arguments without which one cannot hold."""


def flag(text: str, flags: Sequence[str], effects: Mapping[str, Effect]) -> Probe:
    """A flag is parsed, and handed on as its field is."""
    needed = [
        one
        for name, value in NEEDED.get(text, {}).items()
        for one in (f"--{name.replace('_', '-')}", *(() if value is True else (str(value),)))
    ]

    def probe() -> str:
        with said() as texts:
            args = cli_arguments.parse(["serve", *([] if "--model" in flags else [MODEL]), *needed, *flags])
        texts += getattr(args, "neutral_flags", ())
        return _shown(text, texts, effects, lambda: _handed_on(args) != _handed_on_by_default())

    return probe


def _shown(text: str, texts: list[str], effects: Mapping[str, Effect], differs: Callable[[], bool]) -> str:
    if text in effects:
        return str(effects[text]() or "its effect shows")
    squeezed = text.replace("-", "").replace("_", "")
    for one in texts:
        if squeezed in one.replace("-", "").replace("_", ""):
            return f"taken, and said: {one}"
    expect(differs(), "taken without a word, and nothing shows what it does")
    return "it reaches the workers"


def _told(args: AsyncEngineArgs) -> str:
    return repr(worker_settings(args))


@cache
def _told_by_default() -> str:
    return _told(AsyncEngineArgs(model=MODEL))


def _handed_on(args: Any) -> object:
    """The flags that `serve` starts its workers and its router with; settles the arguments."""
    cli_arguments.settle(args)
    return cli_arguments.worker_flags(args, num_workers=2), cli_arguments.router_flags(args)


@cache
def _handed_on_by_default() -> object:
    return _handed_on(cli_arguments.parse(["serve", MODEL]))


def once(effect: Effect) -> Effect:
    """An effect that is looked for once, since fields and flags ask for the same."""

    @cache
    def outcome() -> tuple[object, Exception | None]:
        try:
            return effect(), None
        except Exception as error:
            return None, error

    def looked_up() -> object:
        result, error = outcome()
        if error is not None:
            raise error
        return result

    return looked_up
