"""`AsyncLLMEngine`: many callers on one event loop, one engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

from baton.api.engine_parts import load_parts
from baton.api.metrics import Metric
from baton.api.output_builder import OutputBuilder
from baton.api.prompts import Prompt
from baton.api.request_builder import RequestOptions
from baton.api.transformers_tokenizer import load_tokenizer
from baton.config.engine_args import AsyncEngineArgs, EngineArgs
from baton.config.worker_parts import worker_settings
from baton.executors.async_spawned_executor import AsyncSpawnedExecutor
from baton.executors.engine_loop import EngineLoop
from baton.executors.executor import ABORTED, AsyncExecutor, Inbox, InboxEvent
from baton.executors.in_process_executor import InProcessExecutor
from baton.outputs import RequestOutput
from baton.sampling_params import SamplingParams
from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_router.text.chat_template import Conversation
from baton_router.text.tokenization import Tokenizer
from baton_worker.controls.engine_operations import (
    ApplyModel,
    CallWorker,
    Profile,
    ResetPrefixCache,
    Sleep,
    WakeUp,
)

MAX_OPEN: Final = 8192
"""Requests that are open at a time."""
_log = logging.getLogger(__name__)


class AsyncLLMEngine:
    """A model for callers on an event loop.

    With `prefill_workers` and `decode_workers` it runs router and workers as processes of their own; without,
    the engine computes on a thread of this process.

    Raises:
        InvalidModelError: the model cannot be loaded.
        InvalidConfigError: a setting cannot hold.
    """

    def __init__(self, engine_args: EngineArgs) -> None:
        parts = load_parts(engine_args)
        self.args, self.model, self.requests = parts.args, parts.model, parts.requests
        self.metrics = parts.metrics
        self._executor = _make_executor(self.args, self.requests.tokenizer)
        self._open: dict[str, Inbox] = {}
        self._is_sleeping = False

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model that the arguments describe; waits until it is ready."""
        return cls(engine_args)

    async def generate(
        self,
        prompt: Prompt | Conversation,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        lora_request: None = None,
        trace_headers: None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Complete a prompt; yields outputs as the parameters' `output_kind` says. Leaving it aborts.

        A caller that is slower than the engine gets several steps' tokens at once.

        Raises:
            InvalidRequestError: a field is out of range, or an open request has the id.
            RequestError: the request failed, or cannot be taken now.
        """
        for name, value in (("lora_request", lora_request), ("trace_headers", trace_headers)):
            if value is not None:
                raise InvalidRequestError(name, value, "None: there are neither adapters nor traces")
        if len(self._open) >= MAX_OPEN:
            raise RequestError(ErrorCode.OVERLOADED, f"{len(self._open)} requests are open, the maximum")
        options = RequestOptions(request_id=request_id, priority=priority, tokenization=tokenization_kwargs)
        builder = await asyncio.to_thread(
            self.requests.build, prompt, sampling_params, options, max_model_len=self._executor.max_model_len
        )
        async for output in self._follow(builder):
            yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their iterators yield their last outputs, with `abort` as the reason."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if (inbox := self._open.get(name)) is not None:
                inbox.put((ABORTED,))

    # --- what operators do ---

    @property
    def is_running(self) -> bool:
        """True while the engine can take requests."""
        return self._executor.is_running

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    @property
    def errored(self) -> bool:
        """True once the engine has ended, by itself or by `shutdown`."""
        return not self.is_running

    async def check_health(self) -> None:
        """Ask the engine whether it answers.

        Raises:
            RequestError: it has failed, or is shut down.
        """
        if not self.is_running:
            raise RequestError(ErrorCode.UNAVAILABLE, "the engine has ended")
        await self._executor.load()

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer as Transformers loads it.

        Raises:
            InvalidConfigError: Transformers is not installed, or cannot load it.
        """
        return await asyncio.to_thread(load_tokenizer, self.model.tokenizer_path)

    async def get_metrics(self) -> list[Metric]:
        """Figures of all requests so far, under vLLM's names."""
        return self.metrics.read(await self._executor.load())

    async def do_log_stats(self) -> None:
        """Log how the engine does, and its speed since the last time; nothing with `disable_log_stats`."""
        if not self.args.disable_log_stats:
            self.metrics.log(await self._executor.load())

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False, and nothing is done, while requests are open."""
        return all(await self._executor.control(ResetPrefixCache()))

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Stop computing until `wake_up`, as `LLM.sleep` does.

        Raises:
            InvalidRequestError: level or mode is none that there is, or they do not go together.
        """
        command = Sleep(level=level)
        command.check_mode(mode)
        inboxes = list(self._open.values())
        if mode == "abort":
            await self.abort(list(self._open))
        if mode != "keep":
            await asyncio.gather(*(inbox.wait_closed() for inbox in inboxes))
        await self._executor.control(command)
        self._is_sleeping = True

    async def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Take back what `sleep` gave up: of `weights`, `kv_cache`, `scheduling` those named, or all.

        Raises:
            InvalidRequestError: a tag is none of these.
        """
        self._is_sleeping = any(await self._executor.control(WakeUp(tags=tuple(tags or ()))))

    async def is_sleeping(self) -> bool:
        return self._is_sleeping

    async def apply_model(self, func: Callable[..., Any] | str) -> list[Any]:
        """Call a function with each worker's model, as `LLM.apply_model` does."""
        return await self._executor.control(ApplyModel(function=func))

    async def collective_rpc(
        self,
        method: Callable[..., Any] | str,
        timeout: float | None = None,  # noqa: ASYNC109  (name of the interface)
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of each worker's runner, as `LLM.collective_rpc` does."""
        call = CallWorker(method=method, args=tuple(args), kwargs=dict(kwargs or {}), timeout_s=timeout)
        return await self._executor.control(call)

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """Begin a trace with torch's profiler, into the folder of `profiler_config`."""
        folder = (self.args.profiler_config or {}).get("torch_profiler_dir", "")
        await self._executor.control(Profile(is_start=True, folder=folder, prefix=profile_prefix or ""))

    async def stop_profile(self) -> None:
        """End the trace and write it."""
        await self._executor.control(Profile(is_start=False))

    def shutdown(self) -> None:
        """End the engine after the step in flight; open requests end with an error."""
        self._executor.close()

    # --- parts ---

    async def _follow(self, builder: OutputBuilder) -> AsyncIterator[RequestOutput]:
        request_id = builder.request_id
        if request_id in self._open:
            raise InvalidRequestError("request_id", request_id, "a name that no open request has")
        inbox = Inbox()
        self._open[request_id] = inbox
        try:
            self._executor.submit(builder.spec, inbox)
            self._log_request(builder)
            while True:
                for event in await inbox.take():
                    _read(builder, event)
                output = builder.take()
                if builder.is_over:
                    break
                if output is not None:
                    yield output
        finally:
            del self._open[request_id]
            inbox.close()
            if builder.finished is None:
                builder.abort()
                self._executor.abort(request_id)
            self.metrics.finish(builder)
        if output is not None:  # whoever has the last output may use the name again
            yield output

    def _log_request(self, builder: OutputBuilder) -> None:
        if isinstance(self.args, AsyncEngineArgs) and self.args.enable_log_requests:
            spec = builder.spec
            _log.info("request %s: %d tokens, %s", spec.request_id, len(spec.prompt_token_ids), spec.params)


def _make_executor(args: EngineArgs, tokenizer: Tokenizer) -> AsyncExecutor:
    """Processes of their own, or a thread of this one."""
    if args.is_disaggregated:
        return AsyncSpawnedExecutor(args)
    return EngineLoop(InProcessExecutor(worker_settings(args), tokenizer))


def _read(builder: OutputBuilder, event: InboxEvent) -> None:
    """Pass an event to a builder.

    Raises:
        RequestError: the request failed.
    """
    if isinstance(event, BatonError):
        raise RequestError(event.code, f"{builder.request_id}: {event}")
    if isinstance(event, str):
        builder.abort()
    elif not builder.is_over:
        builder.push(event)
