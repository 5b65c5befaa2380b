"""`AsyncLLMEngine`: many callers on one event loop, one engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

from baton.api.metrics import Metric
from baton.api.output_builder import OutputBuilder
from baton.api.outputs import RequestOutput
from baton.api.prompts import Prompt
from baton.api.request_builder import RequestOptions
from baton.api.transformers_tokenizer import load_tokenizer
from baton.clusters.async_cluster import AsyncCluster
from baton.clusters.async_spawned import AsyncSpawnedCluster
from baton.clusters.cluster import ApplyModel, CallWorker, Profile, ResetPrefixCache, Sleep, WakeUp
from baton.clusters.engine_loop import EngineLoop
from baton.clusters.in_process import InProcessCluster
from baton.clusters.inbox import ABORTED, Inbox, Letter
from baton.config.engine_args import AsyncEngineArgs, EngineArgs
from baton.config.engine_parts import load_parts
from baton.config.worker_parts import worker_settings
from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_router.chat_template import Conversation
from baton_router.tokenization import Tokenizer

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
        self._cluster = _make_cluster(self.args, self.requests.tokenizer)
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
            self.requests.build, prompt, sampling_params, options, max_model_len=self._cluster.max_model_len
        )
        async for output in self._follow(builder):
            yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their iterators yield what there is, with `abort` as the reason."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if (inbox := self._open.get(name)) is not None:
                inbox.put((ABORTED,))

    # --- what operators do ---

    @property
    def is_running(self) -> bool:
        """Whether it can take requests."""
        return self._cluster.is_running

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    @property
    def errored(self) -> bool:
        """Whether it has ended, by itself or by `shutdown`."""
        return not self.is_running

    async def check_health(self) -> None:
        """Ask the engine whether it answers.

        Raises:
            RequestError: it has failed, or is shut down.
        """
        if not self.is_running:
            raise RequestError(ErrorCode.UNAVAILABLE, "the engine has ended")
        await self._cluster.load()

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer as Transformers loads it.

        Raises:
            InvalidConfigError: Transformers is not installed, or cannot load it.
        """
        return await asyncio.to_thread(load_tokenizer, self.model.tokenizer_path)

    async def get_metrics(self) -> list[Metric]:
        """Figures of all requests so far, under vLLM's names."""
        return self.metrics.read(await self._cluster.load())

    async def do_log_stats(self) -> None:
        """Log how the engine does, and its speed since the last time; nothing with `disable_log_stats`."""
        if not self.args.disable_log_stats:
            self.metrics.log(await self._cluster.load())

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False, and nothing is done, while requests are open."""
        return all(await self._cluster.control(ResetPrefixCache()))

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
        await self._cluster.control(command)
        self._is_sleeping = True

    async def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Take back what `sleep` gave up: of `weights`, `kv_cache`, `scheduling` those named, or all.

        Raises:
            InvalidRequestError: a tag is none of these.
        """
        self._is_sleeping = any(await self._cluster.control(WakeUp(tags=tuple(tags or ()))))

    async def is_sleeping(self) -> bool:
        return self._is_sleeping

    async def apply_model(self, func: Callable[..., Any] | str) -> list[Any]:
        """Call a function with each worker's model, as `LLM.apply_model` does."""
        return await self._cluster.control(ApplyModel(function=func))

    async def collective_rpc(
        self,
        method: Callable[..., Any] | str,
        timeout: float | None = None,  # noqa: ASYNC109  (name of the interface)
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of each worker's runner, as `LLM.collective_rpc` does."""
        call = CallWorker(method=method, args=tuple(args), kwargs=dict(kwargs or {}), timeout_s=timeout)
        return await self._cluster.control(call)

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """Begin a trace with torch's profiler, into the folder of `profiler_config`."""
        folder = (self.args.profiler_config or {}).get("torch_profiler_dir", "")
        await self._cluster.control(Profile(is_start=True, folder=folder, prefix=profile_prefix or ""))

    async def stop_profile(self) -> None:
        """End the trace and write it."""
        await self._cluster.control(Profile(is_start=False))

    def shutdown(self) -> None:
        """End the engine, and with an error what is open; waits for the step in flight."""
        self._cluster.close()

    # --- parts ---

    async def _follow(self, builder: OutputBuilder) -> AsyncIterator[RequestOutput]:
        request_id = builder.request_id
        if request_id in self._open:
            raise InvalidRequestError("request_id", request_id, "a name that no open request has")
        inbox = Inbox()
        self._open[request_id] = inbox
        try:
            self._cluster.submit(builder.spec, inbox)
            self._log_request(builder)
            while True:
                for letter in await inbox.take():
                    _read(builder, letter)
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
                self._cluster.abort(request_id)
            self.metrics.finish(builder)
        if output is not None:  # whoever has the last output may use the name again
            yield output

    def _log_request(self, builder: OutputBuilder) -> None:
        if isinstance(self.args, AsyncEngineArgs) and self.args.enable_log_requests:
            spec = builder.spec
            _log.info("request %s: %d tokens, %s", spec.request_id, len(spec.prompt_token_ids), spec.params)


def _make_cluster(args: EngineArgs, tokenizer: Tokenizer) -> AsyncCluster:
    """Processes of their own, or a thread of this one."""
    if args.is_disaggregated:
        return AsyncSpawnedCluster(args)
    return EngineLoop(InProcessCluster(worker_settings(args), tokenizer))


def _read(builder: OutputBuilder, letter: Letter) -> None:
    """Give a builder what came.

    Raises:
        RequestError: the request failed.
    """
    if isinstance(letter, BatonError):
        raise RequestError(letter.code, f"{builder.request_id}: {letter}")
    if isinstance(letter, str):
        builder.abort()
    elif not builder.is_over:
        builder.push(letter)
