"""`AsyncLLMEngine`: many callers on one event loop, one engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Self

from baton.api.async_open_requests import AsyncOpenRequests
from baton.api.async_weight_updates import AsyncWeightUpdates
from baton.api.configured_engine import ConfiguredEngine
from baton.api.engine_executor import make_executor
from baton.api.engine_options import EngineConfig
from baton.api.lora_methods import AsyncLoRAMethods
from baton.api.metrics import Metric
from baton.api.open_requests import Builder, push_event
from baton.api.refused import Refused, refuse_unsupported
from baton.api.request_builder import RequestOptions
from baton.api.weight_updates import WeightUpdates
from baton.config.engine_args import AsyncEngineArgs, EngineArgs
from baton.config.vllm_config import ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from baton.executors.async_spawned_executor import AsyncSpawnedExecutor
from baton.executors.engine_loop import EngineLoop
from baton.executors.executor import AsyncExecutor, Inbox
from baton.inputs import PromptType, TokensPrompt
from baton.lora import LoRARequest
from baton.outputs import RequestOutput
from baton.pooling_outputs import PoolingOutput, PoolingRequestOutput
from baton.pooling_params import PoolingParams
from baton.sampling_params import SamplingParams
from baton_core.errors import EngineDeadError, ErrorCode, InvalidRequestError, RequestError
from baton_core.sessions.sleep_arguments import check_sleep_mode
from baton_router.text.chat_template import Conversation
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


class AsyncLLMEngine(ConfiguredEngine, AsyncOpenRequests, AsyncWeightUpdates, AsyncLoRAMethods):
    """A model for callers on an event loop.

    With `prefill_workers` and `decode_workers` it runs router and workers as processes of their own; without,
    the engine computes on a thread of this process. Its arguments are those of `LLMEngine`.

    Raises:
        InvalidModelError: the model cannot be loaded.
        InvalidConfigError: a setting cannot hold.
        TypeError: an option is unknown.
    """

    def __init__(
        self,
        vllm_config: EngineConfig | None = None,
        executor_class: type | None = None,
        log_stats: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(vllm_config, log_stats, options)
        self._executor: AsyncExecutor = make_executor(
            self.args,
            self.requests.tokenizer,
            executor_class,
            spawned=AsyncSpawnedExecutor,
            local=EngineLoop,
        )
        self.export_metrics(self._read_metrics)
        self._open: dict[str, Inbox] = {}
        self.requests.used_ids = self._open
        self._is_sleeping = False
        self._weights = WeightUpdates()
        self._pinning = asyncio.Lock()

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: Sequence[type] | None = None,
    ) -> Self:
        """Load the model that the arguments describe; waits until it is ready."""
        return cls(engine_args, stat_loggers=stat_loggers)

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: VllmConfig,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: Sequence[type] | None = None,
        disable_log_stats: bool = False,
    ) -> Self:
        """Load the model that a configuration describes; waits until it is ready."""
        return cls(vllm_config, None, not disable_log_stats, stat_loggers=stat_loggers)

    async def generate(
        self,
        prompt: PromptType | Conversation,
        sampling_params: SamplingParams | PoolingParams | None,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: None = None,
        session_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt; yields outputs as the parameters' `output_kind` says. Leaving it aborts.

        A caller that is slower than the engine gets several steps' tokens at once. `prompt_text` is the text
        that outputs show of token ids; `session_id` has no effect: the prefix cache finds what is known.
        A W3C `traceparent` in `trace_headers` makes the request's trace a part of the caller's.

        Raises:
            InvalidRequestError: a field is out of range, or an open request has the id.
            RequestError: the request failed, or cannot be taken now.
        """
        refuse_unsupported(data_parallel_rank=data_parallel_rank)
        if prompt_text is not None and not isinstance(prompt, str | Mapping | Conversation):
            prompt = TokensPrompt(prompt_token_ids=prompt, prompt=prompt_text)
        if len(self._open) >= MAX_OPEN:
            raise RequestError(ErrorCode.OVERLOADED, f"{len(self._open)} requests are open, the maximum")
        options = RequestOptions(
            request_id=request_id,
            priority=priority,
            tokenization=tokenization_kwargs,
            lora_request=lora_request,
            traceparent=self.read_trace_headers(trace_headers),
        )
        builder = await asyncio.to_thread(
            self.requests.build,
            *(prompt, sampling_params, options),
            max_model_len=self._executor.max_model_len,
            pooling=self.pooling,
        )
        async with aclosing(self._follow(builder)) as outputs:
            async for output in outputs:
                yield output

    async def encode(
        self,
        prompt: PromptType | Conversation,
        pooling_params: PoolingParams | None,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Pool the hidden states of a prompt; yields one output. Leaving it aborts.

        Raises:
            InvalidRequestError: a field is out of range, the model does not pool, or an open request has the
                id.
            RequestError: the request failed, or cannot be taken now.
        """
        params = PoolingParams() if pooling_params is None else pooling_params
        pooled: Any = self.generate(
            *(prompt, params, request_id),
            lora_request=lora_request,
            trace_headers=trace_headers,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
        )
        async with aclosing(pooled):
            async for output in pooled:
                yield output

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
            EngineDeadError: it has failed, or is shut down.
        """
        if not self.is_running:
            raise self.dead_error
        await self._executor.load()

    @property
    def dead_error(self) -> EngineDeadError:
        """The error of calls to an engine that has ended."""
        return EngineDeadError(ErrorCode.UNAVAILABLE, "the engine has ended")

    async def get_vllm_config(self) -> VllmConfig:
        return self.vllm_config

    async def get_model_config(self) -> ModelConfig:
        return self.vllm_config.model_config

    async def get_parallel_config(self) -> ParallelConfig:
        return self.vllm_config.parallel_config

    async def get_scheduler_config(self) -> SchedulerConfig:
        return self.vllm_config.scheduler_config

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return self.model_config.supported_tasks

    async def is_tracing_enabled(self) -> bool:
        return bool(self.args.otlp_traces_endpoint)

    async def get_metrics(self) -> list[Metric]:
        """Figures of all requests so far, under vLLM's names."""
        return self.metrics.read(await self._executor.load(), self.vllm_config.cache_config)

    async def do_log_stats(self, scheduler_outputs: object = None, model_output: object = None) -> None:
        """Log how the engine does, and its speed since the last time; nothing with `disable_log_stats`."""
        if not self.args.disable_log_stats:
            self.metrics.log(await self._executor.load())

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget every cached block; False, and nothing is done, while requests are open.

        With `reset_running_requests` these lose their blocks too, and compute their tokens again.
        False then means that blocks are still on their way to other workers.
        """
        return all(await self._executor.control(ResetPrefixCache(preempts=reset_running_requests)))

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Stop computing until `wake_up`, as `LLM.sleep` does.

        Raises:
            InvalidRequestError: level or mode is none that there is, or they do not go together.
            RequestError: UNAVAILABLE, it is to wait for requests while the engine sleeps.
        """
        command = Sleep(level=level)
        check_sleep_mode(level, mode)
        if mode == "abort":
            await self.abort(list(self._open))
        if mode == "wait":
            open_inboxes = self._unended()
            if open_inboxes and self._is_sleeping:
                raise RequestError(ErrorCode.UNAVAILABLE, "the engine sleeps; allowed: wake_up first")
            await asyncio.gather(*(inbox.wait_ended() for inbox in open_inboxes))
        await self._executor.control(command)
        self._is_sleeping = True

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        """Take back what `sleep` gave up: of `weights`, `kv_cache`, `scheduling` those named, or all.

        Returns True if the engine computes again.

        Raises:
            InvalidRequestError: a tag is none of these.
        """
        self._is_sleeping = any(await self._executor.control(WakeUp(tags=tuple(tags or ()))))
        return not self._is_sleeping

    async def reset_mm_cache(self) -> None:
        """Do nothing: models of text alone are supported, so there is no cache of other inputs."""

    async def reset_encoder_cache(self) -> None:
        """Do nothing: models of text alone are supported, so there is no cache of encoders."""

    async def pause_generation(
        self, *, mode: str = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Compute nothing until `resume_generation`; open requests end, are finished first, or are kept.

        Raises:
            InvalidRequestError: mode is none that there is.
        """
        await self.sleep(0, "wait" if wait_for_inflight_requests else mode)
        if clear_cache:
            await self.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """Go on after `pause_generation`."""
        await self.wake_up(["scheduling"])

    async def is_paused(self) -> bool:
        return self._is_sleeping

    release_kv_cache_memory = Refused("sleep(level=1) gives the KV cache up and keeps the weights")
    add_request = Refused("generate takes a request and yields its outputs")

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

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Begin a trace with torch's profiler, into the folder of `profiler_config`."""
        refuse_unsupported(delay_iterations=delay_iterations, max_iterations=max_iterations)
        folder = (self.args.profiler_config or {}).get("torch_profiler_dir", "")
        await self._executor.control(Profile(is_start=True, folder=folder, prefix=profile_prefix or ""))

    async def stop_profile(self) -> None:
        """End the trace and write it."""
        await self._executor.control(Profile(is_start=False))

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine after the step in flight; open requests end with an error.

        `timeout` has no effect: `shutdown_timeout` of the arguments is the time that workers get.
        """
        self.end_export()
        self._executor.close()

    # --- parts ---

    def _read_metrics(self) -> list[Metric]:
        return self.metrics.read(self._executor.load_now(), self.vllm_config.cache_config)

    async def _follow(self, builder: Builder) -> AsyncGenerator[Any, None]:
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
                    push_event(builder, event)
                output = builder.take()
                if builder.is_over:
                    break
                if output is not None:
                    yield output
        finally:
            inbox.close()
            if builder.finished is None:
                builder.abort()
            if self._open.get(request_id) is inbox:  # if not, it was aborted, and another may have its name
                del self._open[request_id]
                if builder.finished is None:
                    self._executor.abort(request_id)
            self.metrics.finish(builder)
        if output is not None:  # whoever has the last output may use the name again
            yield output

    def _log_request(self, builder: Builder) -> None:
        if isinstance(self.args, AsyncEngineArgs) and self.args.enable_log_requests:
            spec = builder.spec
            _log.info("request %s: %d tokens, %s", spec.request_id, len(spec.prompt_token_ids), spec.params)
