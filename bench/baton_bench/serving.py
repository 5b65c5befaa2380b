"""Measures a server once: finds its model, draws the dataset, warms it up, sends the load."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from baton_bench.answers import BenchRequest, LoadRun
from baton_bench.arrivals import Pace, Ramp
from baton_bench.grpc_target import GrpcTarget
from baton_bench.http_client import HttpClient, Origin
from baton_bench.load_run import Limits, OnEnd, run_load
from baton_bench.targets import POLL_S, Backend, OpenAiTarget, RequestDefaults, Target, first_model
from baton_bench.token_source import TokenSource, is_model_folder
from baton_bench.trace_prompts import TracePrompts
from baton_bench.warm_ups import warm_ups
from baton_core.errors import ErrorCode, InvalidConfigError, InvalidModelError, RequestError
from baton_service.router_access import RouterAccess


class Prompts(Protocol):
    """A dataset."""

    def sample(self, count: int, rng: random.Random, source: TokenSource) -> list[BenchRequest]:
        """Up to `count` requests, the same for the same seed.

        Raises:
            InvalidConfigError: its settings or its file do not allow it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    """A server of OpenAI's interface."""

    origin: Origin
    headers: Mapping[str, str] = field(default_factory=dict)
    backend: Backend = Backend.OPENAI
    endpoint: str = ""
    """Empty: that of the backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcServer:
    """A Baton router."""

    address: str
    access: RouterAccess


Server: TypeAlias = HttpServer | GrpcServer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """The source of prompts' tokens."""

    tokenizer: str = ""
    """A folder or id; empty: the model's, if that is a folder here."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folders here of models that go by other names."""
    vocab_size: int
    """Size of the vocabulary where there is no tokenizer."""
    sends_ids: bool = False
    """Leave sampled prompts as token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """One measurement."""

    server: Server
    model: str
    """A name, folder or id; empty: the first that the server lists."""
    defaults: RequestDefaults
    prompts: Prompts
    tokens: TokenChoice
    num_prompts: int
    num_warmups: int
    pace: Pace | None
    """None: a trace's own."""
    limits: Limits
    seed: int
    ready_timeout_s: float
    """Seconds within which the server has to list its models and answer a request; 0: it has to at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A load run, and who answered it."""

    run: LoadRun
    model: str
    tokenizer: str
    """Empty: prompts were token ids."""


async def measure_server(plan: ServePlan, on_end: OnEnd) -> Measured:
    """Measure once. A cancellation of the load leaves what has been measured by then.

    Raises:
        InvalidConfigError: the dataset cannot be sampled, or not be sent to this server.
        InvalidModelError: there is no such tokenizer.
        RequestError: UNAVAILABLE, the server does not answer; or the first warm-up request's error.
    """
    loop = asyncio.get_running_loop()
    asked_s = loop.time()
    plan, root = await _with_model(plan)
    ready_rest_s = plan.ready_timeout_s - (loop.time() - asked_s)
    named = (plan.tokens.folders.get(name, name) for name in (plan.model, root))
    tokenizer = plan.tokens.tokenizer or next(filter(is_model_folder, named), "")
    source = _token_source(plan.tokens, tokenizer)
    num_before = max(plan.num_warmups, int(plan.ready_timeout_s > 0))
    rng = random.Random(plan.seed)
    requests = plan.prompts.sample(plan.num_prompts, rng, source)
    if isinstance(plan.server, HttpServer):
        _require_text(plan.server.backend, requests)
    before = warm_ups(requests, num_before, rng, source)
    target = _target(plan)
    try:
        if plan.ready_timeout_s:
            await _wait_until_served(target, before[0], plan, ready_rest_s)
        if plan.num_warmups:
            await _warm_up(target, before[: plan.num_warmups], plan.limits)
        times_s = _times(plan, len(requests))
        run = await run_load(target, requests, times_s, plan.limits, on_end, keeps_part=True)
    finally:
        await target.close()
    return Measured(run=run, model=plan.defaults.model or plan.model, tokenizer=tokenizer)


async def _with_model(plan: ServePlan) -> tuple[ServePlan, str]:
    """The plan with the name to ask for, and the folder that the server says it has loaded."""
    name, root = plan.defaults.model or plan.model, ""
    if isinstance(plan.server, HttpServer) and (
        not name or plan.ready_timeout_s or not plan.tokens.tokenizer
    ):
        client = HttpClient(plan.server.origin, plan.server.headers)
        try:
            listed, folder = await first_model(client, "/v1", plan.ready_timeout_s)
        except RequestError:
            if not name or plan.ready_timeout_s:
                raise
        else:
            name = name or listed
            root = folder if name == listed else ""
        finally:
            await client.close()
    return replace(plan, defaults=replace(plan.defaults, model=name)), root


def _token_source(choice: TokenChoice, tokenizer: str) -> TokenSource:
    if not tokenizer:
        return TokenSource(None, choice.vocab_size, writes_text=False)
    try:
        return TokenSource.of_model(tokenizer, writes_text=not choice.sends_ids)
    except InvalidModelError as error:
        raise InvalidModelError(f"--tokenizer {tokenizer}: {error}") from error


def _target(plan: ServePlan) -> Target:
    server = plan.server
    if isinstance(server, HttpServer):
        client = HttpClient(server.origin, server.headers)
        return OpenAiTarget(client, server.backend, server.endpoint, plan.defaults)
    return GrpcTarget(server.address, server.access, plan.defaults)


def _times(plan: ServePlan, count: int) -> list[float]:
    pace = plan.pace
    rate = None if pace is None else pace.rate
    if isinstance(plan.prompts, TracePrompts) and not isinstance(rate, Ramp) and rate != math.inf:
        return plan.prompts.arrival_times(count, rate)
    return (pace or Pace()).arrival_times(count, random.Random(plan.seed))


def _require_text(backend: Backend, requests: Sequence[BenchRequest]) -> None:
    if backend is Backend.OPENAI_CHAT and not all(isinstance(request.prompt, str) for request in requests):
        raise InvalidConfigError(
            "--backend is 'openai-chat', whose prompts are text; allowed: --tokenizer with a folder or id, "
            "and no --token-ids; or --backend openai"
        )


async def _wait_until_served(target: Target, request: BenchRequest, plan: ServePlan, within_s: float) -> None:
    error = f"no answer within {plan.ready_timeout_s:g} s"
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                run = await run_load(target, [request], [0.0], plan.limits, lambda _: None)
                error = run.answers[0].error
                if not error:
                    return
                await asyncio.sleep(POLL_S)
    raise RequestError(ErrorCode.UNAVAILABLE, f"the server answers no request: {error}")


async def _warm_up(target: Target, requests: Sequence[BenchRequest], limits: Limits) -> None:
    run = await run_load(target, requests, [0.0] * len(requests), limits, lambda _: None)
    error = next((answer.error for answer in run.answers if answer.error), "")
    if error:
        raise RequestError(ErrorCode.UNAVAILABLE, f"a request before the measurement failed: {error}")
