"""`LLMEngine`: requests in, outputs out, one step at a time, in the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from baton.api.configured_engine import ConfiguredEngine
from baton.api.engine_executor import make_executor
from baton.api.engine_options import EngineConfig
from baton.api.lora_methods import LoRAMethods
from baton.api.metrics import Metric
from baton.api.model_executor import GivenWeights, ModelExecutor
from baton.api.open_requests import AnyOutput, Builder, OpenRequests
from baton.api.output_processor import OutputProcessor
from baton.api.refused import Refused, refuse_unsupported
from baton.api.request_builder import RequestOptions
from baton.api.weight_updates import WeightUpdates
from baton.config.engine_args import EngineArgs
from baton.config.vllm_config import ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from baton.executors.executor import Executor
from baton.executors.in_process_executor import InProcessExecutor
from baton.executors.spawned_executor import SpawnedExecutor
from baton.inputs import PromptType
from baton.lora import LoRARequest
from baton.pooling_params import PoolingParams
from baton.sampling_params import SamplingParams
from baton_core.errors import EngineDeadError, ErrorCode, InvalidRequestError, RequestError
from baton_core.sessions.sleep_arguments import check_sleep_mode
from baton_router.text.chat_template import Conversation
from baton_worker.controls.engine_operations import (
    ApplyModel,
    CallWorker,
    Control,
    FinishWeightUpdate,
    Profile,
    ResetPrefixCache,
    Sleep,
    WakeUp,
)


class LLMEngine(ConfiguredEngine, LoRAMethods):
    """A model, and the requests that are open at it.

    `vllm_config`, `model_config` and what else describes it comes from `ConfiguredEngine`.

    Args:
        vllm_config: `EngineArgs`, or what their `create_engine_config` returns.
        executor_class: None, or the class that the configuration leads to.
        log_stats: False is `disable_log_stats`.
        options: further arguments of vLLM's engines, the parts of a configuration in the place of
            `vllm_config` among them.

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
        self._executor: Executor = make_executor(
            self.args,
            self.requests.tokenizer,
            executor_class,
            spawned=SpawnedExecutor,
            local=InProcessExecutor,
        )
        self.export_metrics(self.get_metrics)
        self._open = OpenRequests(self.metrics)
        self.requests.used_ids = self._open
        self._is_sleeping = self._is_closed = False
        self.weights = WeightUpdates()
        self._given_weights = GivenWeights(lambda tensors: self.control_each(self.weights.replace(tensors)))
        self.model_executor = ModelExecutor.of(self._given_weights)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        usage_context: object = None,
        stat_loggers: Sequence[type] | None = None,
        enable_multiprocessing: bool = False,
    ) -> Self:
        """Load the model that the arguments describe."""
        return cls(engine_args, stat_loggers=stat_loggers)

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: VllmConfig,
        usage_context: object = None,
        stat_loggers: Sequence[type] | None = None,
        disable_log_stats: bool = False,
    ) -> Self:
        """Load the model that a configuration describes."""
        return cls(vllm_config, None, not disable_log_stats, stat_loggers=stat_loggers)

    def get_vllm_config(self) -> VllmConfig:
        return self.vllm_config

    def get_model_config(self) -> ModelConfig:
        return self.vllm_config.model_config

    def get_parallel_config(self) -> ParallelConfig:
        return self.vllm_config.parallel_config

    def get_scheduler_config(self) -> SchedulerConfig:
        return self.vllm_config.scheduler_config

    def get_supported_tasks(self) -> tuple[str, ...]:
        return self.model_config.supported_tasks

    def add_request(
        self,
        request_id: str,
        prompt: PromptType | Conversation | None = None,
        params: SamplingParams | PoolingParams | None = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        prompt_adapter_request: None = None,
        *,
        inputs: PromptType | Conversation | None = None,
    ) -> str:
        """Take a request; returns its id, which is chosen where `request_id` is empty.

        `inputs` is the older name of `prompt`. A W3C `traceparent` in `trace_headers` makes the request's
        trace a part of the caller's.

        Raises:
            InvalidRequestError: a field is out of range, or an open request has the id.
            RequestError: UNAVAILABLE, the engine sleeps.
            TypeError: the id is no text, or there is no prompt.
        """
        if not isinstance(request_id, str):
            raise TypeError(f"request_id is {request_id!r}; allowed: text")
        if arrival_time is not None and not isinstance(arrival_time, int | float):
            raise InvalidRequestError("arrival_time", arrival_time, "seconds since 1970, or None")
        refuse_unsupported(prompt_adapter_request=prompt_adapter_request)
        prompt = inputs if prompt is None else prompt
        if prompt is None:
            raise TypeError("add_request() needs a prompt")
        options = RequestOptions(
            request_id=request_id,
            priority=priority,
            arrival_s=arrival_time,
            tokenization=tokenization_kwargs,
            lora_request=lora_request,
            traceparent=self.read_trace_headers(trace_headers),
        )
        builder = self.requests.build(
            prompt, params, options, max_model_len=self.max_model_len, pooling=self.pooling
        )
        self.submit(builder)
        return builder.request_id

    def submit(self, builder: Builder) -> None:
        """Take a request that is checked.

        Raises:
            InvalidRequestError: an open request has its id.
            RequestError: UNAVAILABLE, the engine sleeps, or is shut down: an `EngineDeadError`.
        """
        if self._is_closed:
            raise EngineDeadError(ErrorCode.UNAVAILABLE, "the engine is shut down")
        self._given_weights.apply()
        self._open.require_unused(builder.request_id)
        self._executor.submit(builder.spec)
        self._open.add(builder)

    def abort_request(
        self,
        request_id: str | Iterable[str] = (),
        internal: bool = False,
        *,
        request_ids: Iterable[str] = (),
    ) -> None:
        """End requests without further outputs; unknown ones are ignored.

        `request_ids` is the newer name of `request_id`; ids are the same inside, so `internal` has no effect.
        """
        named = [request_id] if isinstance(request_id, str) else [*request_id]
        self._end([*named, *request_ids])

    def step(self, awaited: Container[str] | None = None) -> list[AnyOutput]:
        """Run one step of the open requests; returns the outputs to show.

        With `awaited` these are only the last outputs of those requests; what others have to show comes with
        a later step.

        Raises:
            RequestError: a request failed and has ended. The outputs of this step come with the next, and so
                do the errors of other requests, one with each step.
        """
        self._open.read(self._executor.step())
        return self._open.take(awaited)

    def has_unfinished_requests(self) -> bool:
        """True if a step has anything to do, or to show."""
        return bool(self._open.unfinished)

    def has_unfinished_requests_for_virtual_engine(self, virtual_engine: int) -> bool:
        """The same of a stage of a pipeline; there is one, 0.

        Raises:
            InvalidRequestError: it is another one.
        """
        if virtual_engine != 0:
            raise InvalidRequestError("virtual_engine", virtual_engine, "0: pipelines are not supported yet")
        return self.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        return len(self._open)

    @property
    def open_requests(self) -> tuple[str, ...]:
        """Ids of the requests that are not over."""
        return self._open.ids

    @property
    def unfinished_requests(self) -> tuple[str, ...]:
        """Ids of the requests that are not over, or whose last output or error no step has brought yet."""
        return self._open.unfinished

    @property
    def output_processor(self) -> OutputProcessor:
        return OutputProcessor(self._open.builders, self._end)

    def _end(self, request_ids: Iterable[str]) -> list[str]:
        named = [*request_ids]
        ended = self._open.end(named)
        self._executor.abort(ended)
        self._open.drop(named)
        return ended

    # --- what operators do ---

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget every cached block; False, and nothing is done, while requests are open.

        With `reset_running_requests` these lose their blocks too, and compute their tokens again.
        False then means that blocks are still on their way to other workers.
        """
        return all(self.control(ResetPrefixCache(preempts=reset_running_requests)))

    def reset_mm_cache(self) -> None:
        """Do nothing: models of text alone are supported, so there is no cache of other inputs."""

    def reset_encoder_cache(self) -> None:
        """Do nothing: models of text alone are supported, so there is no cache of encoders."""

    def apply_model(self, func: Callable[..., Any] | str) -> list[Any]:
        """Call a function with each worker's model, as `LLM.apply_model` does."""
        return self.control(ApplyModel(function=func))

    def collective_rpc(
        self,
        method: Callable[..., Any] | str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of each worker's runner, as `LLM.collective_rpc` does."""
        call = CallWorker(method=method, args=tuple(args), kwargs=dict(kwargs or {}), timeout_s=timeout)
        return self.control(call)

    release_kv_cache_memory = Refused("sleep(level=1) gives the KV cache up and keeps the weights")

    def control(self, command: Control) -> list[Any]:
        """Ask something of each worker; returns their answers. Open requests end before the weights change.

        Raises:
            InvalidRequestError: it cannot be done here; the message names the field.
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        self._given_weights.apply()
        if isinstance(command, FinishWeightUpdate):
            self.finish_requests()
        return self._executor.control(command)

    def control_each(self, commands: Iterator[Control]) -> None:
        """Ask one thing after the other, each when the one before is done."""
        for command in commands:
            self.control(command)

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Stop computing, as `Sleep` says; `mode` is what becomes of the open requests.

        `abort` ends them with the tokens they have, `wait` finishes them first, `keep` resumes them after
        `wake_up`, which only level 0 allows.

        Raises:
            InvalidRequestError: level or mode is none of these, or they do not go together.
        """
        command = Sleep(level=level)
        check_sleep_mode(level, mode)
        if mode == "abort":
            self._executor.abort(self._open.end(self._open.ids))
        if mode == "wait":
            self.finish_requests()
        self._executor.control(command)
        self._is_sleeping = True

    def finish_requests(self) -> None:
        """Step until no request is open; the outputs come with the next step.

        Raises:
            RequestError: a request failed, or the engine sleeps.
        """
        if self._open:
            self.require_awake()
        while self._open:
            self._open.read(self._executor.step())

    def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        """Take back what `sleep` gave up: of `weights`, `kv_cache`, `scheduling` those named, or all.

        Returns True if the engine computes again.

        Raises:
            InvalidRequestError: a tag is none of these.
        """
        self._is_sleeping = any(self._executor.control(WakeUp(tags=tuple(tags or ()))))
        return not self._is_sleeping

    def is_sleeping(self) -> bool:
        return self._is_sleeping

    def require_awake(self) -> None:
        """Refuse to wait for requests that are paused.

        Raises:
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        if self._is_sleeping:
            raise RequestError(ErrorCode.UNAVAILABLE, "the engine sleeps; allowed: wake_up first")

    def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Begin a trace with torch's profiler, into the folder of `profiler_config`.

        Raises:
            InvalidRequestError: no folder is set, a trace has begun already, or steps are counted.
        """
        refuse_unsupported(delay_iterations=delay_iterations, max_iterations=max_iterations)
        folder = (self.args.profiler_config or {}).get("torch_profiler_dir", "")
        self.control(Profile(is_start=True, folder=folder, prefix=profile_prefix or ""))

    def stop_profile(self) -> None:
        """End the trace and write it.

        Raises:
            InvalidRequestError: none has begun.
        """
        self.control(Profile(is_start=False))

    def get_metrics(self) -> list[Metric]:
        """Figures of all requests so far, under vLLM's names."""
        return self.metrics.read(self._executor.load(), self.vllm_config.cache_config)

    def do_log_stats(
        self,
        scheduler_outputs: object = None,
        model_output: object = None,
        finished_before: object = None,
        skip: object = None,
    ) -> None:
        """Log how the engine does, and its speed since the last time; nothing with `disable_log_stats`.

        The arguments are those that vLLM's own loop once gave; the engine knows them itself.
        """
        if not self.args.disable_log_stats:
            self.metrics.log(self._executor.load())

    def close(self) -> None:
        """End the open requests and the executor; the engine takes no request afterwards."""
        self._is_closed = True
        self.end_export()
        self.abort_request(self._open.unfinished)
        self._executor.close()
