"""`LLMEngine`: requests in, outputs out, one step at a time, in the calling thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from baton.api.engine_parts import load_parts
from baton.api.metrics import Metric
from baton.api.output_builder import OutputBuilder
from baton.api.prompts import Prompt
from baton.api.request_builder import RequestOptions
from baton.api.transformers_tokenizer import load_tokenizer
from baton.config.engine_args import EngineArgs
from baton.config.worker_parts import worker_settings
from baton.executors.executor import Executor
from baton.executors.in_process_executor import InProcessExecutor
from baton.executors.spawned_executor import SpawnedExecutor
from baton.outputs import RequestOutput
from baton.sampling_params import SamplingParams
from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_router.text.chat_template import Conversation
from baton_router.text.tokenization import Tokenizer
from baton_worker.controls.engine_operations import Control, Profile, Sleep, WakeUp


class LLMEngine:
    """A model, and the requests that are open at it.

    Raises:
        InvalidModelError: the model cannot be loaded.
        InvalidConfigError: a setting cannot hold.
    """

    def __init__(self, engine_args: EngineArgs) -> None:
        parts = load_parts(engine_args)
        self.args, self.model, self.requests = parts.args, parts.model, parts.requests
        self.metrics = parts.metrics
        self._executor = _make_executor(self.args, self.requests.tokenizer)
        self._open: dict[str, OutputBuilder] = {}
        self._outputs: list[RequestOutput] = []
        self.is_sleeping = False

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load the model that the arguments describe."""
        return cls(engine_args)

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together."""
        return self._executor.max_model_len

    def add_request(
        self,
        request_id: str,
        prompt: Prompt | Conversation,
        params: SamplingParams | None = None,
        arrival_time: float | None = None,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: None = None,
        priority: int = 0,
    ) -> str:
        """Take a request; returns its id, which is chosen where `request_id` is empty.

        Raises:
            InvalidRequestError: a field is out of range, or an open request has the id.
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        for name, value in (("lora_request", lora_request), ("trace_headers", trace_headers)):
            if value is not None:
                raise InvalidRequestError(name, value, "None: there are neither adapters nor traces")
        options = RequestOptions(
            request_id=request_id, priority=priority, arrival_s=arrival_time, tokenization=tokenization_kwargs
        )
        builder = self.requests.build(prompt, params, options, max_model_len=self.max_model_len)
        self.submit(builder)
        return builder.request_id

    def submit(self, builder: OutputBuilder) -> None:
        """Take a request that is checked.

        Raises:
            InvalidRequestError: an open request has its id.
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        request_id = builder.request_id
        if request_id in self._open:
            raise InvalidRequestError("request_id", request_id, "a name that no open request has")
        self._executor.submit(builder.spec)
        self._open[request_id] = builder

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End requests without further outputs; ended and unknown ones are ignored."""
        self._abort([request_id] if isinstance(request_id, str) else list(request_id))

    def step(self) -> list[RequestOutput]:
        """Run one step of the open requests; returns the outputs to show.

        Raises:
            RequestError: a request failed and has ended. The outputs of this step come with the next.
        """
        failed: RequestError | None = None
        touched: dict[str, OutputBuilder] = {}
        for request_id, event in self._executor.step():
            if (builder := self._open.get(request_id)) is None:
                continue
            if isinstance(event, BatonError):
                failed = failed or RequestError(event.code, f"{request_id}: {event}")
                del self._open[request_id]
                continue
            builder.push(event)
            touched[request_id] = builder
            if builder.is_over:
                del self._open[request_id]
                self.metrics.finish(builder)
        self._outputs += [output for builder in touched.values() if (output := builder.take()) is not None]
        if failed is not None:
            raise failed
        outputs, self._outputs = self._outputs, []
        return outputs

    def has_unfinished_requests(self) -> bool:
        """True if a step has anything to do, or to show."""
        return bool(self._open or self._outputs)

    def get_num_unfinished_requests(self) -> int:
        return len(self._open)

    @property
    def open_requests(self) -> tuple[str, ...]:
        """Ids of the requests that are not over."""
        return tuple(self._open)

    def get_tokenizer(self) -> Any:
        """The model's tokenizer as Transformers loads it.

        Raises:
            InvalidConfigError: Transformers is not installed, or cannot load it.
        """
        return load_tokenizer(self.model.tokenizer_path)

    def control(self, command: Control) -> list[Any]:
        """Ask something of each worker; returns their answers.

        Raises:
            InvalidRequestError: it cannot be done here; the message names the field.
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        return self._executor.control(command)

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Stop computing, as `Sleep` says; `mode` is what becomes of the open requests.

        `abort` ends them with the tokens they have, `wait` finishes them first, `keep` resumes them after
        `wake_up`, which only level 0 allows.

        Raises:
            InvalidRequestError: level or mode is none of these, or they do not go together.
        """
        command = Sleep(level=level)
        command.check_mode(mode)
        if mode == "abort":
            self._outputs += self._abort(list(self._open))
        if mode == "wait":
            self.finish_requests()
        self._executor.control(command)
        self.is_sleeping = True

    def finish_requests(self) -> None:
        """Step until no request is open; the outputs come with the next step.

        Raises:
            RequestError: a request failed, or the engine sleeps.
        """
        if self._open:
            self.require_awake()
        outputs: list[RequestOutput] = []
        while self._open:
            outputs += self.step()
        self._outputs = outputs + self._outputs

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Take back what `sleep` gave up: of `weights`, `kv_cache`, `scheduling` those named, or all.

        Raises:
            InvalidRequestError: a tag is none of these.
        """
        self.is_sleeping = any(self._executor.control(WakeUp(tags=tuple(tags or ()))))

    def require_awake(self) -> None:
        """Refuse to wait for requests that are paused.

        Raises:
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        if self.is_sleeping:
            raise RequestError(ErrorCode.UNAVAILABLE, "the engine sleeps; allowed: wake_up first")

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Begin a trace with torch's profiler, into the folder of `profiler_config`.

        Raises:
            InvalidRequestError: no folder is set, or a trace has begun already.
        """
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
        return self.metrics.read(self._executor.load())

    def do_log_stats(self) -> None:
        """Log how the engine does, and its speed since the last time; nothing with `disable_log_stats`."""
        if not self.args.disable_log_stats:
            self.metrics.log(self._executor.load())

    def close(self) -> None:
        """Close the executor; the engine takes no request afterwards."""
        self._executor.close()

    def _abort(self, request_ids: list[str]) -> list[RequestOutput]:
        """End requests; returns their last outputs."""
        builders = [builder for name in request_ids if (builder := self._open.pop(name, None)) is not None]
        self._executor.abort([builder.request_id for builder in builders])
        for builder in builders:
            builder.abort()
            self.metrics.finish(builder)
        return [output for builder in builders if (output := builder.take()) is not None]


def _make_executor(args: EngineArgs, tokenizer: Tokenizer) -> Executor:
    """Processes of their own, or everything in this one."""
    if args.is_disaggregated:
        return SpawnedExecutor(args)
    return InProcessExecutor(worker_settings(args), tokenizer)
