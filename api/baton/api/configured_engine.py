"""Arguments, model files and views that `LLMEngine` and `AsyncLLMEngine` share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from baton.api.engine_config import engine_config
from baton.api.engine_options import EngineConfig, read_engine_options
from baton.api.engine_parts import read_model, request_builder
from baton.api.input_views import InputProcessor, Renderer
from baton.api.metrics import GenerationMetrics
from baton.api.metrics_export import ENGINES, ReadMetrics
from baton.api.trace_headers import read_trace_headers
from baton.api.transformers_tokenizer import load_tokenizer
from baton.config.engine_folders import with_local_folders
from baton.config.ignored_engine_args import log_ignored
from baton.config.vllm_config import ModelConfig, VllmConfig
from baton.executors.executor import Sized
from baton.processes.plugins import load_plugins
from baton_core.errors import InvalidConfigError
from baton_core.requests.pooling import PoolingModel


class ConfiguredEngine:
    """An engine's configuration, read of its model's files; the engine itself has the executor.

    Raises:
        InvalidModelError: the model cannot be found, or a file is broken.
        InvalidConfigError: a setting cannot hold.
        TypeError: an option is unknown.
        ValueError: there are several data-parallel ranks.
    """

    DO_VALIDATE_OUTPUT: ClassVar[bool] = False
    """Kept for callers that set it: every output is of its type."""
    _executor: Sized

    def __init__(
        self, vllm_config: EngineConfig | None, log_stats: bool | None, options: Mapping[str, Any]
    ) -> None:
        given = read_engine_options(type(self).__name__, vllm_config, log_stats, options)
        load_plugins()
        log_ignored(vars(given))
        self._given, self.args = given, with_local_folders(given)
        self.model = read_model(self.args)
        self.requests = request_builder(self.args, self.model)
        self._export_number: int | None = None
        self.metrics = GenerationMetrics(self.args.served_model_name[0])
        if (size := given.data_parallel_size) > 1:
            allowed = (
                "1 in Python: baton serve starts ranks, and prefill_workers and decode_workers add workers"
            )
            raise ValueError(f"data_parallel_size is {size}; allowed: {allowed}")
        self.renderer = Renderer(self.requests, self.get_tokenizer)
        self.input_processor = InputProcessor(self.requests, self.renderer, lambda: self.max_model_len)

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together."""
        return self._executor.max_model_len

    @property
    def pooling(self) -> PoolingModel | None:
        """Description of what the model pools; None where it generates."""
        return self._executor.pooling

    @cached_property
    def vllm_config(self) -> VllmConfig:
        """The configuration, with the sizes that the engine found to fit."""
        sizes = self._executor
        return engine_config(
            self._given,
            local=self.args,
            max_model_len=sizes.max_model_len,
            num_gpu_blocks=sizes.num_blocks,
            pooling=sizes.pooling,
        )

    def export_metrics(self, read: ReadMetrics) -> None:
        """Show what `read` returns in the default registry of `prometheus_client`.

        Does nothing with `disable_log_stats`.
        """
        if not self.args.disable_log_stats:
            self._export_number = ENGINES.add(read)

    def end_export(self) -> None:
        """Show no figures any more."""
        if self._export_number is not None:
            ENGINES.remove(self._export_number)
            self._export_number = None

    def read_trace_headers(self, headers: Mapping[str, str] | None) -> str:
        """Return the trace context in a request's headers, if requests are traced; empty without one.

        Raises:
            InvalidRequestError: the headers are no mapping.
        """
        return read_trace_headers(headers, is_traced=bool(self.args.otlp_traces_endpoint))

    @property
    def model_config(self) -> ModelConfig:
        return self.vllm_config.model_config

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer as Transformers loads it."""
        return self.get_tokenizer()

    def get_tokenizer(self) -> Any:
        """The model's tokenizer as Transformers loads it.

        Raises:
            InvalidConfigError: Transformers is not installed, or cannot load it, or `skip_tokenizer_init`.
        """
        if self.args.skip_tokenizer_init:
            raise InvalidConfigError("skip_tokenizer_init is True; allowed with get_tokenizer: False")
        return load_tokenizer(self.model.tokenizer_path)
